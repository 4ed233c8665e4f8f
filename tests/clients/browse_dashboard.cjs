// Opens the dashboard of a gateway in Chromium and uses it like an operator. Prints as JSON the console messages and
// what the page shows.
//
// Usage: browse_dashboard.cjs figures URL CLIENT [DIRECTORY]    figures, tables, and the view of a client; screenshots
//        browse_dashboard.cjs token URL TOKEN                   a wrong token, this token, and a reload of the page
//        browse_dashboard.cjs gone URL DIRECTORY                a gateway that is killed when the file `live` exists in
//                                                               the directory, and started when `gone` exists

const { writeFileSync } = require("node:fs");
const path = require("node:path");

const { inspect, withTab } = require("./devtools.cjs");

const [mode, url, argument, screenshots] = process.argv.slice(2);
const TIMEOUT_MS = 30_000;

// Runs a function in the page again and again, until it returns true.
async function eventually(tab, what, f, ...values) {
  for (const end = Date.now() + TIMEOUT_MS; Date.now() < end; ) {
    if (await tab.evaluate(f, ...values)) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const shown = await tab.evaluate(() => document.body.innerText);
  throw new Error(`timed out waiting until ${what}. The page shows:\n${shown}`);
}

const text = (tab, selector) => tab.evaluate((it) => document.querySelector(it).textContent, selector);
const isLive = () => document.querySelector("#status").textContent === "Live";
const hasRows = (id) => document.querySelectorAll(`#${id} tbody tr`).length > 0;

// Runs in the page. Returns the texts of a table by column, one object per row.
function rowsOf(id) {
  return [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => {
    const cells = [...row.children].map((cell) => [cell.dataset.column, cell.textContent]);
    return { row: row.dataset.row, ...Object.fromEntries(cells) };
  });
}

async function figures(tab) {
  const views = [];
  for (const [width, size] of [[1600, "wide"], [360, "phone"]]) {
    for (const scheme of ["light", "dark"]) {
      await tab.resize(width, scheme);
      await tab.open(url);
      for (const id of ["outcomes", "limits", "top", "upstreams"]) {
        await eventually(tab, `${id} has rows`, hasRows, id);
      }
      const name = `dashboard-${size}-${scheme}`;
      if (screenshots) writeFileSync(path.join(screenshots, `${name}.png`), await tab.screenshot());
      views.push({ name, ...(await tab.evaluate(inspect)) });
    }
  }
  const outcomes = await tab.evaluate(rowsOf, "outcomes");
  const limits = await tab.evaluate(rowsOf, "limits");
  const seen = {
    totals: Object.fromEntries(outcomes.map(({ row, total }) => [row, total])),
    limits: Object.fromEntries(limits.map((limit) => [limit.row, limit])),
    top: await tab.evaluate(rowsOf, "top"),
    // Values that the page expects and the API does not have.
    missing: await tab.evaluate(() => document.body.innerText.match(/undefined|NaN|null|\[object/g) ?? []),
    injected: await tab.evaluate(() => document.querySelectorAll("img, body script:not(:last-child)").length),
  };
  return { ...seen, views, client: await useClient(tab) };
}

// Opens the client from the list of rejected keys, explains a request of it, and refills its bucket.
async function useClient(tab) {
  const client = argument;
  await tab.evaluate((key) => {
    [...document.querySelectorAll("#top a")].find((link) => link.textContent === key).click();
  }, client);
  await eventually(tab, "the buckets are shown", hasRows, "buckets");
  await tab.evaluate(() => {
    document.querySelector("#explain-path").value = "/device";
    document.querySelector("#explain").requestSubmit();
  });
  await eventually(tab, "the explanation is shown", () => document.querySelector("#explain-lines").children.length > 0);
  const before = await text(tab, '#buckets [data-row="device"] [data-column="tokens"]');
  const asked = tab.tools.event("Page.javascriptDialogOpening");
  // `confirm` blocks the page, so the click must not be a part of the evaluated script.
  await tab.evaluate(() => {
    setTimeout(() => document.querySelector('#buckets [data-row="device"] button').click(), 0);
  });
  await asked;
  await tab.send("Page.handleJavaScriptDialog", { accept: true });
  await eventually(tab, "the refill is confirmed", () => document.querySelector("#refill-result").textContent !== "");
  await eventually(tab, "the bucket is full", (old) => {
    return document.querySelector('#buckets [data-row="device"] [data-column="tokens"]').textContent !== old;
  }, before);
  return {
    title: await text(tab, "#client-title"),
    tokens: { before, after: await text(tab, '#buckets [data-row="device"] [data-column="tokens"]') },
    refilled: await text(tab, "#refill-result"),
    explanation: await tab.evaluate(() => {
      return [...document.querySelectorAll("#explain-lines > *")].map((it) => it.textContent).join("|");
    }),
  };
}

async function token(tab) {
  const isAsking = () => !document.querySelector("#token-view").hidden;
  const enter = (value) => tab.evaluate((entered) => {
    document.querySelector("#token").value = entered;
    document.querySelector("#token-form").requestSubmit();
  }, value);
  await tab.open(url);
  await eventually(tab, "the page asks for the token", isAsking);
  await enter("wrong");
  await eventually(tab, "the token is rejected", () => document.querySelector("#token-message").textContent !== "");
  const wrong = await text(tab, "#token-message");
  await enter(argument);
  await eventually(tab, "the page is live", isLive);
  const seen = {
    wrong,
    status: await text(tab, "#status"),
    stored: await tab.evaluate((secret) => {
      const places = [localStorage, sessionStorage].map((storage) => storage.length);
      const isShown = [location.href, document.cookie, document.documentElement.outerHTML].join().includes(secret);
      return places[0] + places[1] + Number(isShown);
    }, argument),
  };
  await tab.open(url);
  await eventually(tab, "the page asks again", isAsking);
  return { ...seen, asked_again: true };
}

async function gone(tab) {
  await tab.open(url);
  await eventually(tab, "the page is live", isLive);
  writeFileSync(path.join(argument, "live"), "");
  await eventually(tab, "the banner is shown", () => document.querySelector('[data-banner="gone"]') !== null);
  const banner = await text(tab, '[data-banner="gone"]');
  writeFileSync(path.join(argument, "gone"), "");
  await eventually(tab, "the page is live again", isLive);
  const banners = await tab.evaluate(() => document.querySelectorAll('[data-banner="gone"]').length);
  return { gone: banner, recovered: await text(tab, "#status"), banners };
}

withTab(async (tab) => {
  await tab.resize(1200, "light");
  const seen = await { figures, token, gone }[mode](tab);
  console.log(JSON.stringify({ messages: tab.messages(), ...seen }));
}).then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
