// Opens a page in Chromium, in light and dark and on a wide and a narrow screen, and presses all its buttons. Prints as
// JSON the console messages, what the page looks like, and the list items that each button adds. With a second argument,
// writes screenshots to that directory.
//
// Usage: browse_page.cjs (FILE.html | URL) [DIRECTORY]

const { writeFileSync } = require("node:fs");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const { inspect, withTab } = require("./devtools.cjs");

const [page, screenshots] = process.argv.slice(2);
const pageUrl = page.startsWith("http://") ? page : pathToFileURL(path.resolve(page)).href;

// Runs in the page. Presses each button, and waits until it can be pressed again. Returns the texts of the list after
// each button.
async function pressButtons() {
  const lists = [];
  for (const button of document.querySelectorAll("button")) {
    button.click();
    while (button.disabled) await new Promise((resolve) => setTimeout(resolve, 10));
    lists.push([...button.nextElementSibling.children].map((item) => item.textContent));
  }
  return lists;
}

// Runs in the page. Returns facts about a report of the lab.
function inspectReport() {
  // Labels of one lane that overlap cannot be read.
  let overlaps = 0;
  for (const lane of document.querySelectorAll(".plot svg")) {
    const boxes = [...lane.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
    boxes.forEach((a, index) => {
      for (const b of boxes.slice(index + 1)) {
        const isBeside = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
        if (a.width > 0 && b.width > 0 && !isBeside) overlaps++;
      }
    });
  }
  return {
    overlaps,
    marks: document.querySelectorAll(".lane use").length,
    untitled: document.querySelectorAll(".lane g:not(:has(> title))").length,
    scripts: document.querySelectorAll("script").length,
  };
}

async function look(tab, name, width, scheme) {
  await tab.resize(width, scheme);
  await tab.open(pageUrl);
  const pressed = await tab.evaluate(pressButtons);
  const facts = { ...(await tab.evaluate(inspect)), ...(await tab.evaluate(inspectReport)) };
  if (screenshots) writeFileSync(path.join(screenshots, `${name}.png`), await tab.screenshot());
  return { name, pressed, ...facts };
}

withTab(async (tab) => {
  const views = [];
  for (const [width, size] of [[1200, "wide"], [360, "phone"]]) {
    for (const scheme of ["light", "dark"]) views.push(await look(tab, `${size}-${scheme}`, width, scheme));
  }
  console.log(JSON.stringify({ messages: tab.messages(), requests: tab.requests(), views }));
}).then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
