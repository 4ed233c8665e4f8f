// Headline figures, and requests by outcome as plot and as tables.

const OUTCOMES = [["admitted", "Admitted"], ["rejected", "Rejected"], ["delayed", "Delayed"], ["replayed", "Replayed"],
  ["upstream_errors", "Upstream errors"]];
const PLOT_SPAN_MS = 15 * 60 * 1000;

// ---- Figures ----

function setFigure(id, value, note, level = "") {
  const figure = $("figures").querySelector(`[data-figure="${id}"]`);
  setText(figure.querySelector(".value"), value);
  setText(figure.querySelector(".note"), note);
  figure.className = level;
}

/** Requests per second of an outcome in the last minute, or null before the first interval ends. */
function rateOf(traffic, outcome) {
  const recent = traffic[outcome].slice(-Math.round(60 / traffic.interval));
  return recent.length === 0 ? null : sum(recent) / (recent.length * traffic.interval);
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const shareOf = (part, whole) => (whole > 0 ? part / whole : null);

function showTrafficFigures({ traffic, totals }) {
  const [admitted, rejected, errors] = ["admitted", "rejected", "upstream_errors"].map((it) => rateOf(traffic, it));
  const all = admitted === null ? null : admitted + rejected;
  const each = (rate) => (rate === null ? "" : `; ${number(rate, 1)} per second`);
  setFigure("requests", number(all, 1), `last minute; ${number(totals.admitted + totals.rejected)} since start`);
  setFigure("rejected", percent(shareOf(rejected, all)), `last minute${each(rejected)}`);
  const isHigh = errors > 0.01 * admitted;
  const note = `of admitted, last minute${each(errors)}`;
  setFigure("upstream-errors", percent(shareOf(errors, admitted)), note, isHigh ? "warn" : "");
}

// ---- Plot ----

const showOutcomes = createTable("outcomes", {
  key: ({ outcome }) => outcome,
  empty: () => "",
  cells: {
    outcome: showOutcomeName,
    rate: ({ outcome }) => number(rateOf(overview.traffic, outcome), 1),
    window: ({ outcome }) => number(sum(overview.traffic[outcome])),
    total: ({ outcome }) => number(overview.totals[outcome]),
  },
});

function showOutcomeName({ outcome, title }, cell) {
  if (cell.firstChild) return;
  const line = shape("line", { class: `line ${outcome}`, x2: 26, y1: 4, y2: 4 });
  cell.append(shape("svg", { class: "swatch", "aria-hidden": "true" }, line), title);
}

const showMinutes = createTable("minutes", {
  key: ({ ends }) => String(ends),
  empty: () => "The first interval has not ended.",
  cells: {
    minute: ({ ends }) => clock(ends),
    ...Object.fromEntries(OUTCOMES.map(([id]) => [id, ({ counts }) => number(counts[id])])),
  },
});

/** Requests of each minute, the newest first. */
function minutes({ traffic }) {
  const size = Math.round(60 / traffic.interval);
  const rows = [];
  for (let to = traffic.admitted.length; to > 0; to -= size) {
    const counts = OUTCOMES.map(([id]) => [id, sum(traffic[id].slice(Math.max(to - size, 0), to))]);
    const ends = Date.parse(traffic.end) - (traffic.admitted.length - to) * traffic.interval * 1000;
    rows.push({ ends, counts: Object.fromEntries(counts) });
  }
  return rows;
}

/** Distance of about four grid lines below `max`: 1, 2 or 5 times a power of ten. */
function gridStep(max) {
  const power = 10 ** Math.floor(Math.log10(max / 4));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => max / step <= 4);
}

function drawPlot() {
  const [width, height] = [$("plot").clientWidth, $("plot").clientHeight];
  if (!overview || width === 0) return;
  const { traffic } = overview;
  const end = Date.parse(traffic.end);
  const rates = (outcome) => traffic[outcome].map((value) => value / traffic.interval);
  const highest = Math.max(1, ...OUTCOMES.flatMap(([id]) => rates(id)));
  const step = gridStep(highest);
  const top = Math.ceil(highest / step) * step;
  const [left, right, bottom] = [number(top, step < 1 ? 1 : 0).length * 7 + 8, width - 2, height - 20];
  const x = (time) => right - ((end - time) / PLOT_SPAN_MS) * (right - left);
  const y = (rate) => bottom - (rate / top) * (bottom - 8);
  const timeOf = (back) => end - (back + 0.5) * traffic.interval * 1000;
  const path = (outcome) => {
    const all = rates(outcome);
    return all.map((rate, index) => `${x(timeOf(all.length - 1 - index)).toFixed(1)},${y(rate).toFixed(1)}`);
  };
  const parts = [];
  for (let rate = 0; rate <= top + step / 2; rate += step) {
    parts.push(shape("line", { class: "grid", x1: left, x2: right, y1: y(rate), y2: y(rate) }));
    const label = number(rate, step < 1 ? 1 : 0);
    parts.push(shape("text", { x: left - 6, y: y(rate) + 4, "text-anchor": "end" }, label));
  }
  const tick = PLOT_SPAN_MS / 3;
  for (let time = Math.ceil((end - PLOT_SPAN_MS) / tick) * tick; time <= end; time += tick) {
    parts.push(shape("line", { class: "grid", x1: x(time), x2: x(time), y1: 8, y2: bottom }));
    const anchor = x(time) > right - 20 ? "end" : x(time) < left + 20 ? "start" : "middle";
    const label = new Date(time).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
    parts.push(shape("text", { x: x(time), y: height - 4, "text-anchor": anchor }, label));
  }
  const admitted = path("admitted");
  if (admitted.length > 0) {
    const corners = [`${x(timeOf(admitted.length - 1))},${bottom}`, ...admitted, `${x(timeOf(0))},${bottom}`];
    parts.push(shape("polygon", { class: "area admitted", points: corners.join(" ") }));
  }
  for (const [id] of OUTCOMES) parts.push(shape("polyline", { class: `line ${id}`, points: path(id).join(" ") }));
  traffic.admitted.forEach((_, index) => {
    const back = traffic.admitted.length - 1 - index;
    const values = OUTCOMES.map(([id, name]) => `${name} ${number(traffic[id][index] / traffic.interval, 1)}`);
    const title = shape("title", {}, `${clock(timeOf(back - 0.5))}   ${values.join(", ")}`);
    const [from, to] = [x(timeOf(back + 0.5)), x(timeOf(back - 0.5))];
    parts.push(shape("rect", { class: "interval", x: from, y: 8, width: to - from, height: bottom - 8 }, title));
  });
  $("plot").setAttribute("viewBox", `0 0 ${width} ${height}`);
  $("plot").replaceChildren(...parts);
  const summary = OUTCOMES.map(([id, title]) => `${title.toLowerCase()} ${number(rateOf(traffic, id), 1)}`);
  $("plot").setAttribute("aria-label", `Requests per second, last minute: ${summary.join(", ")}`);
}
