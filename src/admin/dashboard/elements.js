"use strict";

// Texts, elements and tables. Keys and User-Agents come from clients, so all data becomes text nodes and never markup.

const MAX_TEXT = 300;

/** Characters that are not visible or change the order of others, such as bidi marks. */
const INVISIBLE = /[\p{C}\p{DI}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

const $ = (id) => document.getElementById(id);

function visible(text) {
  const shown = String(text).replace(INVISIBLE, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
  return shown.length > MAX_TEXT ? `${shown.slice(0, MAX_TEXT)}…` : shown;
}

/** Does not touch unchanged text, so that a selection and the voice of a screen reader are not interrupted. */
function setText(node, text) {
  const shown = visible(text);
  if (node.textContent !== shown) node.textContent = shown;
}

function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const least = 10 ** -digits;
  if (value > 0 && value < least / 2) return `<${least}`;
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const percent = (share) => number(share === null ? null : share * 100, 1);
const milliseconds = (seconds) => number(seconds === null ? null : seconds * 1000, seconds < 0.1 ? 1 : 0);

function duration(seconds) {
  if (seconds < 120) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${number(seconds / 60)} min`;
  return seconds < 172_800 ? `${number(seconds / 3600)} h` : `${number(seconds / 86_400)} d`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${number(count / 1024 ** power, power && 1)} ${units[power]}`;
}

/** Local time of day, with the date if it is not today. */
function clock(time) {
  const date = new Date(time);
  if (time === null || time === undefined || Number.isNaN(date.getTime())) return "–";
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const at = date.toLocaleTimeString("en-GB");
  return date.toDateString() === new Date().toDateString() ? at : `${day} ${at}`;
}

// ---- Elements ----

function element(name, attributes = {}, ...content) {
  return fill(document.createElement(name), attributes, content);
}

function shape(name, attributes = {}, ...content) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, content);
}

function fill(made, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...content.map((part) => (part instanceof Node ? part : visible(part))));
  return made;
}

/** Shows facts as terms and their descriptions. */
function showFacts(list, facts) {
  facts.forEach(([term, description], index) => {
    if (!list.children[index * 2]) list.append(element("dt"), element("dd"));
    setText(list.children[index * 2], term);
    setText(list.children[index * 2 + 1], description);
  });
  while (list.children.length > facts.length * 2) list.lastElementChild.remove();
}

/** Shows a share as a percentage and a bar. */
function showShare(cell, share) {
  if (!cell.firstChild) {
    const track = shape("rect", { class: "track", width: 48, height: 8, rx: 2 });
    const bar = shape("svg", { class: "bar", "aria-hidden": "true" }, track, shape("rect", { height: 8, rx: 2 }));
    cell.append(element("span"), bar);
  }
  const filled = cell.lastChild.lastChild;
  setText(cell.firstChild, percent(share));
  filled.setAttribute("width", 48 * Math.min(Math.max(share ?? 0, 0), 1));
  filled.setAttribute("class", share >= 1 ? "full" : "fill");
}

// ---- Tables ----

/**
 * Returns the function that shows rows in the table of the element `id`, whose head is in the markup. `cells` has a
 * function for each column: it returns the text of the cell for a row, or changes the cell itself. Rows with the same
 * `key` keep their elements, so that an update keeps focus and selection.
 */
function createTable(id, { key, empty, rowClass = () => "", most = 15, cells }) {
  const body = element("tbody");
  const note = element("p", { class: "empty" }, "Loading.");
  const more = element("button", { type: "button", hidden: "" });
  const table = $(id).querySelector("table");
  table.hidden = true;
  table.append(body);
  $(id).append(note, more);
  let [known, rows, showsAll] = [new Map(), [], false];
  const update = () => {
    table.hidden = rows.length === 0;
    setText(note, rows.length === 0 ? empty() : "");
    more.hidden = rows.length <= most;
    setText(more, showsAll ? `Show ${most} of ${rows.length}` : `Show all ${rows.length}`);
    const focused = document.activeElement;
    const next = new Map();
    rows.slice(0, showsAll ? rows.length : most).forEach((row, index) => {
      const line = known.get(key(row)) ?? createRow(table, Object.keys(cells), key(row));
      next.set(key(row), line);
      line.className = rowClass(row);
      Object.values(cells).forEach((show, at) => {
        const text = show(row, line.children[at]);
        if (text !== undefined) setText(line.children[at], text);
      });
      if (body.children[index] !== line) body.insertBefore(line, body.children[index] ?? null);
    });
    while (body.children.length > next.size) body.lastElementChild.remove();
    known = next;
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    // A part of the page that scrolls must be reachable with the keyboard.
    $(id).tabIndex = $(id).scrollWidth > $(id).clientWidth ? 0 : -1;
  };
  more.addEventListener("click", () => {
    showsAll = !showsAll;
    update();
  });
  return (shown) => {
    rows = shown;
    update();
  };
}

function createRow(table, columns, key) {
  const made = columns.map((column, index) => {
    const cell = element(index === 0 ? "th" : "td", { "data-column": column });
    cell.className = table.querySelector(`thead [data-column="${column}"]`).className;
    if (index === 0) cell.scope = "row";
    return cell;
  });
  return element("tr", { "data-row": key }, ...made);
}
