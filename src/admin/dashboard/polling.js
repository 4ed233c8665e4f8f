// State of the page, calls of the admin API, banners, and the token. The token is only in a variable: it is in no
// storage, URL or cookie. EventSource is not used, because it cannot send a token in a header.

const TIMEOUT_MS = 12_000;
const MAX_PAUSE_S = 8;

let token = null;
let isTokenNeeded = false;
/** Whether the last request for the overview got no valid response. */
let isGone = false;
let lastResponse = null;
let overview = null;
let limits = null;
/** What the client view shows: { value, limit }. `limit` is null if the value is looked up in all limits. */
let opened = null;

// ---- API ----

class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

class NoResponse extends Error {}

async function call(path, method = "GET", content = undefined) {
  const headers = token === null ? {} : { authorization: `Bearer ${token}` };
  if (content) headers["content-type"] = "application/json";
  const options = { method, headers, body: content && JSON.stringify(content), cache: "no-store", redirect: "error" };
  let status, text;
  try {
    const response = await fetch(`admin/v1/${path}`, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
    [status, text] = [response.status, await response.text()];
  } catch (error) {
    throw new NoResponse(error.name === "TimeoutError" ? `no response within ${TIMEOUT_MS / 1000} s` : "no connection");
  }
  const answer = parse(text);
  if (status >= 200 && status < 300 && (answer !== undefined || status === 204)) return answer;
  throw new ApiError(status, answer?.detail ?? answer?.title ?? `unexpected response with status ${status}`);
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// ---- Polling ----

/** Endpoints that the page loads. Each has at most one request at a time. */
const sources = [];

function follow(name, seconds, load, isWanted = () => true) {
  sources.push({ name, seconds, load, isWanted, isLoading: false, failures: 0, due: 0 });
}

/** Starts the loads that are due. Only the overview is loaded while it fails, and nothing while the page is hidden. */
function loadDue() {
  if (document.hidden || isTokenNeeded) return;
  const isDue = (it) => !it.isLoading && it.due <= Date.now() && it.isWanted() && (!isGone || it.load === loadOverview);
  for (const source of sources.filter(isDue)) refresh(source);
}

function loadNow() {
  for (const source of sources) source.due = 0;
  loadDue();
}

async function refresh(source) {
  const isOverview = source.load === loadOverview;
  source.isLoading = true;
  source.due = Infinity;
  try {
    await source.load();
    source.failures = 0;
    setBanners(source.name, isOverview ? overviewBanners(overview) : []);
    if (isOverview) setGone(null);
  } catch (error) {
    source.failures += 1;
    if (error.status === 401) askForToken(token === null ? "" : "The gateway does not accept this token any more.");
    else if (isOverview) setGone(error);
    else if (error instanceof ApiError) setBanners(source.name, [["error", "bad", `${source.name}: ${error.message}`]]);
    else if (!(error instanceof NoResponse)) throw error;
  } finally {
    source.isLoading = false;
    const seconds = Math.min(source.seconds * 2 ** source.failures, MAX_PAUSE_S);
    // It is 0 if another load was requested in the meantime.
    if (source.due === Infinity) source.due = Date.now() + seconds * 1000;
  }
}

function setGone(error) {
  const wasGone = isGone;
  isGone = error !== null;
  setText($("status"), isGone ? "No response" : "Live");
  $("status").className = isGone ? "bad" : "good";
  document.title = isGone ? `No response: ${location.host}` : `Tidegate ${location.host}`;
  if (!isGone) {
    lastResponse = new Date();
    setText($("updated"), `updated ${clock(lastResponse)}`);
    setBanners("gone", []);
  } else {
    const since = lastResponse ? ` since ${clock(lastResponse)}` : "";
    const what = error instanceof NoResponse ? "The gateway does not respond" : "The admin API responds with an error";
    const figures = lastResponse ? " The figures on this page are of that time." : "";
    setBanners("gone", [["gone", "bad", `${what}${since} (${error.message}).${figures} The page tries again.`]]);
  }
  if (wasGone && !isGone) loadNow();
}

// ---- Banners and the token ----

const banners = new Map([["gone", []], ["overview", []]]);

/** Sets the banners of one source. A banner is its kind, its level and its text. */
function setBanners(source, list) {
  if (JSON.stringify(banners.get(source) ?? []) === JSON.stringify(list)) return;
  banners.set(source, list);
  const all = [...banners.values()].flat();
  $("banners").replaceChildren(
    ...all.map(([kind, level, text]) => element("p", { class: `banner ${level}`, "data-banner": kind }, text)));
}

function overviewBanners({ draining, store, config, warnings }) {
  const list = store.degraded.map(({ part, reason }) => ["store", "bad", `Store degraded: ${part}: ${reason}`]);
  if (draining) list.push(["draining", "bad", "The gateway drains: it accepts no more requests."]);
  if (config?.last_reload?.result === "rejected") {
    const [at, before] = [clock(config.last_reload.at), clock(config.loaded_at)];
    const text = `The reload at ${at} was rejected. The configuration of ${before} stays in force; see below.`;
    list.push(["config", "bad", text]);
  }
  const pending = config?.pending_restart ?? [];
  if (pending.length > 0) list.push(["restart", "warn", `Changed settings that need a restart: ${pending.join(", ")}`]);
  return [...list, ...warnings.map(({ since, text }) => ["warning", "warn", `${text} (since ${clock(since)})`])];
}

function askForToken(message) {
  isTokenNeeded = true;
  setText($("token-message"), message);
  setText($("status"), "Waiting for the token");
  $("main").hidden = true;
  $("token-view").hidden = false;
  $("token").focus();
}

async function enterToken() {
  const entered = $("token").value.trim();
  $("token").value = "";
  // A header cannot carry other characters.
  if (!/^[\x21-\x7e]+$/.test(entered)) return askForToken("A token consists of visible ASCII characters.");
  token = entered;
  try {
    await call("overview");
  } catch (error) {
    token = null;
    const isWrong = error.status === 401;
    return askForToken(isWrong ? "The gateway rejected this token." : `The token was not checked: ${error.message}.`);
  }
  isTokenNeeded = false;
  $("token-view").hidden = true;
  $("main").hidden = false;
  $("main").focus();
  loadNow();
}
