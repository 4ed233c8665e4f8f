// Opens a page in Chromium, in light and dark and on a wide and a narrow screen, and presses all its buttons. Prints as
// JSON the console messages, what the page looks like, and the list items that each button adds. With a second argument,
// writes screenshots to that directory.
//
// Usage: browse_page.cjs (FILE.html | URL) [DIRECTORY]

const { spawn } = require("node:child_process");
const { mkdtempSync, rmSync, writeFileSync } = require("node:fs");
const { tmpdir } = require("node:os");
const path = require("node:path");
const { pathToFileURL } = require("node:url");

const [page, screenshots] = process.argv.slice(2);
const pageUrl = page.startsWith("http://") ? page : pathToFileURL(path.resolve(page)).href;

// Commands of the DevTools protocol on one WebSocket.
class DevTools {
  constructor(socket) {
    this.socket = socket;
    this.pending = new Map();
    this.events = [];
    this.waiting = [];
    socket.addEventListener("message", ({ data }) => {
      const message = JSON.parse(data);
      const pending = this.pending.get(message.id);
      if (pending) {
        this.pending.delete(message.id);
        message.error ? pending.reject(new Error(message.error.message)) : pending.resolve(message.result);
        return;
      }
      this.events.push(message);
      this.waiting = this.waiting.filter(({ method, resolve }) => method !== message.method || resolve());
    });
  }

  static async connect(url) {
    const socket = new WebSocket(url);
    await new Promise((resolve, reject) => {
      socket.addEventListener("open", resolve);
      socket.addEventListener("error", reject);
    });
    return new DevTools(socket);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++DevTools.last;
    this.socket.send(JSON.stringify({ id, method, params, sessionId }));
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  event(method) {
    return new Promise((resolve) => this.waiting.push({ method, resolve }));
  }
}
DevTools.last = 0;

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

// Runs in the page. Returns the facts that a test checks.
function inspect() {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = channels(color).map((value) => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (channels(color)[3] !== 0) return color;
    }
    return "rgb(255, 255, 255)";
  };
  const isShown = (element) => element.getClientRects().length > 0;
  const texts = [...document.querySelectorAll("body *")].filter(
    (element) => isShown(element) && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()),
  );
  let contrast = Infinity;
  let smallest = Infinity;
  for (const element of texts) {
    const style = getComputedStyle(element);
    const color = element instanceof SVGElement ? style.fill : style.color;
    const [high, low] = [luminance(color), luminance(background(element))].sort((a, b) => b - a);
    contrast = Math.min(contrast, (high + 0.05) / (low + 0.05));
    smallest = Math.min(smallest, parseFloat(style.fontSize));
  }
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
    title: document.title,
    background: getComputedStyle(document.body).backgroundColor,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    contrast,
    smallest,
    overlaps,
    marks: document.querySelectorAll(".lane use").length,
    untitled: document.querySelectorAll(".lane g:not(:has(> title))").length,
    scripts: document.querySelectorAll("script").length,
    external: document.querySelectorAll("[src], link, [href]:not([href^='#'])").length,
  };
}

async function look(tools, sessionId, name, width, scheme) {
  const send = (method, params) => tools.send(method, params, sessionId);
  await send("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
  await send("Emulation.setScrollbarsHidden", { hidden: true });
  await send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  const loaded = tools.event("Page.loadEventFired");
  await send("Page.navigate", { url: pageUrl });
  await loaded;
  const evaluate = async (f) => {
    const options = { expression: `(${f})()`, awaitPromise: true, returnByValue: true };
    return (await send("Runtime.evaluate", options)).result.value;
  };
  const pressed = await evaluate(pressButtons);
  const facts = await evaluate(inspect);
  if (screenshots) {
    const { data } = await send("Page.captureScreenshot", { captureBeyondViewport: true, format: "png" });
    writeFileSync(path.join(screenshots, `${name}.png`), Buffer.from(data, "base64"));
  }
  return { name, pressed, ...facts };
}

async function main() {
  const profile = mkdtempSync(path.join(tmpdir(), "tidegate-chromium-"));
  // The sandbox does not start as root. The page is one of the project's own.
  const options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
  const browser = spawn("chromium", [...options, "--remote-debugging-port=0", `--user-data-dir=${profile}`], {
    stdio: ["ignore", "ignore", "pipe"],
  });
  try {
    const url = await new Promise((resolve, reject) => {
      let output = "";
      browser.stderr.on("data", (data) => {
        output += data;
        const found = output.match(/DevTools listening on (\S+)/);
        if (found) resolve(found[1]);
      });
      browser.on("error", reject);
      browser.on("exit", () => reject(new Error(`chromium ended: ${output}`)));
    });
    const tools = await DevTools.connect(url);
    const { targetId } = await tools.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await tools.send("Target.attachToTarget", { targetId, flatten: true });
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await tools.send(`${domain}.enable`, {}, sessionId);
    const views = [];
    for (const [width, size] of [[1200, "wide"], [360, "phone"]]) {
      for (const scheme of ["light", "dark"]) {
        views.push(await look(tools, sessionId, `${size}-${scheme}`, width, scheme));
      }
    }
    const messages = tools.events
      .filter(({ method }) => ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"].includes(method))
      .map(({ params }) => JSON.stringify(params));
    const requests = tools.events
      .filter(({ method }) => method === "Network.requestWillBeSent")
      .map(({ params }) => params.request.url);
    console.log(JSON.stringify({ messages, requests: [...new Set(requests)], views }));
    await tools.send("Browser.close");
  } finally {
    const ended = new Promise((resolve) => browser.exitCode === null ? browser.on("exit", resolve) : resolve());
    browser.kill("SIGKILL");
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
