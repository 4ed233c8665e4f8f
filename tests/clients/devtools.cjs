// Chromium for tests of pages, controlled with the DevTools protocol.

const { spawn } = require("node:child_process");
const { mkdtempSync, rmSync } = require("node:fs");
const { tmpdir } = require("node:os");
const path = require("node:path");

// Commands of the DevTools protocol on one WebSocket.
class DevTools {
  constructor(socket) {
    this.socket = socket;
    this.last = 0;
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
    const id = ++this.last;
    this.socket.send(JSON.stringify({ id, method, params, sessionId }));
    return new Promise((resolve, reject) => this.pending.set(id, { resolve, reject }));
  }

  event(method) {
    return new Promise((resolve) => this.waiting.push({ method, resolve }));
  }
}

// A tab of the browser.
class Tab {
  constructor(tools, sessionId) {
    this.tools = tools;
    this.sessionId = sessionId;
  }

  send(method, params) {
    return this.tools.send(method, params, this.sessionId);
  }

  async resize(width, scheme) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: false });
    await this.send("Emulation.setScrollbarsHidden", { hidden: true });
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
  }

  async open(url) {
    const loaded = this.tools.event("Page.loadEventFired");
    await this.send("Page.navigate", { url });
    await loaded;
  }

  // Runs a function in the page with these arguments, which must be JSON, and returns its result.
  async evaluate(f, ...values) {
    const expression = `(${f})(...${JSON.stringify(values)})`;
    const evaluated = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (evaluated.exceptionDetails) throw new Error(JSON.stringify(evaluated.exceptionDetails));
    return evaluated.result.value;
  }

  async screenshot() {
    const { data } = await this.send("Page.captureScreenshot", { captureBeyondViewport: true, format: "png" });
    return Buffer.from(data, "base64");
  }

  // Messages of the console, uncaught exceptions, and failed requests.
  messages() {
    const methods = ["Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"];
    const found = this.tools.events.filter(({ method }) => methods.includes(method));
    return found.map(({ params }) => JSON.stringify(params));
  }

  requests() {
    const found = this.tools.events.filter(({ method }) => method === "Network.requestWillBeSent");
    return [...new Set(found.map(({ params }) => params.request.url))];
  }
}

// Starts Chromium, passes a new tab to `use`, and ends Chromium.
async function withTab(use) {
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
    const tab = new Tab(tools, sessionId);
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await tab.send(`${domain}.enable`, {});
    await use(tab);
    await tools.send("Browser.close");
  } finally {
    const ended = new Promise((resolve) => browser.exitCode === null ? browser.on("exit", resolve) : resolve());
    browser.kill("SIGKILL");
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

// Runs in the page. Returns what a test checks of every page: its width, the least contrast of its texts, and external
// resources.
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
  return {
    title: document.title,
    background: getComputedStyle(document.body).backgroundColor,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    contrast,
    smallest,
    external: document.querySelectorAll("[src], link, [href]:not([href^='#'])").length,
  };
}

module.exports = { withTab, inspect };
