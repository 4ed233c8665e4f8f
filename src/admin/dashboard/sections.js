// Sections of the page below the plot, and the overview.

/** Limits whose keys are merged in one table. Each of them costs one request per update. */
const MAX_MERGED_LIMITS = 10;

// ---- Overview ----

async function loadOverview() {
  overview = await call("overview");
  showTrafficFigures(overview);
  showOutcomes(OUTCOMES.map(([outcome, title]) => ({ outcome, title })));
  showMinutes(minutes(overview));
  drawPlot();
  const { version, uptime, store, records, config, subscribers } = overview;
  showRecords(records);
  const reload = config?.last_reload;
  showFacts($("state"), [
    ["Version", version],
    ["Running for", duration(uptime)],
    ["Store", store.degraded.length > 0 ? `${store.backend}, degraded` : `${store.backend}, healthy`],
    ["Configuration", config ? config.source : "built in"],
    ...(config ? [["Loaded", clock(config.loaded_at)], ["Hash", config.hash]] : []),
    ...(config ? [["Last reload", reload ? `${reload.result} at ${clock(reload.at)}` : "none since start"]] : []),
    ["Event subscribers", number(subscribers)],
  ]);
  // The message has several lines, each of them made visible on its own.
  const lines = (reload?.error ?? "").split("\n").map(visible).join("\n");
  $("reload-error").hidden = lines === "";
  if ($("reload-error").textContent !== lines) $("reload-error").textContent = lines;
}

// ---- Limits ----

/** Rejections, or those that a limit in shadow mode would have made. */
const recentHits = ({ recent }) => recent.rejected + recent.shadow_rejected;

const showLimits = createTable("limits", {
  key: ({ name }) => name,
  empty: () => "The configuration has no limit. Add a [limit.NAME] and name it in `limits` of a [[route]].",
  cells: {
    name: showLimitName,
    key: ({ key }) => key.join(" + "),
    quota: ({ quota, unit }) => `${quota.rate}, burst ${number(quota.burst)}${unit === "requests" ? "" : ` (${unit})`}`,
    share: (limit, cell) => showShare(cell, shareOf(recentHits(limit), limit.recent.admitted + recentHits(limit))),
    "recent-rejected": ({ recent }) => number(recent.rejected),
    "recent-shadow": ({ recent }) => number(recent.shadow_rejected),
    "recent-admitted": ({ recent }) => number(recent.admitted),
    rejected: ({ rejected }) => number(rejected),
    shadow: (limit) => number(limit.shadow_rejected),
    admitted: ({ admitted }) => number(admitted),
    early: ({ early }) => number(early),
    near: ({ near }) => number(near),
    p50: ({ used }) => percent(used && used.p50),
    p90: ({ used }) => percent(used && used.p90),
    max: ({ used }, cell) => showShare(cell, used && used.max),
  },
});

function showLimitName({ name, mode, on_exceed: onExceed }, cell) {
  if (!cell.firstChild) cell.append(element("bdi"), element("span"));
  setText(cell.firstChild, name);
  const tag = mode === "shadow" ? "shadow" : onExceed === "delay" ? "delays" : "";
  cell.lastChild.className = tag && "tag";
  setText(cell.lastChild, tag);
}

async function loadLimits() {
  limits = (await call("limits")).limits;
  showLimits(limits.toSorted((a, b) => recentHits(b) - recentHits(a)));
  const [early, rejected] = [sum(limits.map((it) => it.recent.early)), sum(limits.map((it) => it.recent.rejected))];
  const share = shareOf(early, rejected);
  setFigure("early", number(early), share === null ? "" : `${percent(share)} % of rejected`);
  const names = ["", ...limits.map(({ name }) => name)];
  const options = [...$("top-limit").options];
  if (JSON.stringify(options.map(({ value }) => value)) === JSON.stringify(names)) return;
  const chosen = $("top-limit").value;
  $("top-limit").replaceChildren(...names.map((name) => element("option", { value: name }, name || "all")));
  $("top-limit").value = names.includes(chosen) ? chosen : "";
}

// ---- Keys of limits ----

const rowOfKey = ({ limit, key }) => JSON.stringify([limit, key]);

const showTop = createTable("top", {
  key: rowOfKey,
  empty: () => "No limit has rejected a request in the last five minutes.",
  cells: {
    key: showKey,
    limit: ({ limit }) => limit,
    rejected: countWithError,
    early: ({ early }) => number(early),
    attempts: (key) => number(key.attempts_per_admission, 1),
    used: ({ used }, cell) => showShare(cell, used),
    "user-agent": (key, cell) => showValue(cell, key.user_agent),
    since: ({ since }) => clock(since),
    last: ({ last }) => clock(last),
  },
});

const showNear = createTable("near", {
  key: rowOfKey,
  empty: () => "No key uses more than 80 % of its quota without being rejected.",
  cells: {
    key: showKey,
    limit: ({ limit }) => limit,
    used: ({ used }, cell) => showShare(cell, used),
    since: ({ since }) => clock(since),
    last: ({ last }) => clock(last),
  },
});

/** The true count is between `rejected` and `rejected + error`. */
function countWithError({ rejected, error }) {
  return error > 0 ? `${number(rejected)} to ${number(rejected + error)}` : number(rejected);
}

function showValue(cell, value) {
  if (!cell.firstChild) cell.append(element("bdi"));
  setText(cell.firstChild, value ?? "–");
  // The style sheet shows at most two lines of a long text.
  cell.title = visible(value ?? "");
}

/** Shows a key as a link to the client view. A hash has no link: the value that it stands for is not known. */
function showKey({ key, limit }, cell) {
  const isHash = /^[0-9a-f]{16}$/.test(key);
  if (!cell.firstChild) cell.append(isHash ? element("span") : element("a", { href: clientLink(key, limit) }));
  const holder = cell.firstChild;
  if (!holder.firstChild) holder.append(element("bdi"), element("span", { class: "muted" }));
  setText(holder.firstChild, key);
  setText(holder.lastChild, isHash ? " (hash)" : "");
}

function clientLink(key, limit) {
  // A limit shows an IPv6 client as a network, and counts requests without its header by client.
  const client = key.replace(/\/\d+$/, "");
  return `#${new URLSearchParams(isAddress(client) ? { client } : { client: key, limit })}`;
}

/** Limits whose keys a table shows: the chosen one, or those with the highest count. */
function mergedLimits(chosen, hits) {
  if (chosen) return limits.filter(({ name }) => name === chosen);
  return limits.filter((it) => hits(it) > 0).toSorted((a, b) => hits(b) - hits(a)).slice(0, MAX_MERGED_LIMITS);
}

async function keysOf(list, by) {
  const keys = [];
  let leftOut = 0;
  for (const { name } of list) {
    try {
      const top = await call(`limits/${encodeURIComponent(name)}/top?by=${by}&max=100`);
      keys.push(...top.keys.map((key) => ({ ...key, limit: name })));
      leftOut += top.left_out;
    } catch (error) {
      // A reload has removed the limit.
      if (error.status !== 404) throw error;
    }
  }
  return { keys, leftOut };
}

async function loadTop() {
  const chosen = $("top-limit").value;
  const list = mergedLimits(chosen, recentHits);
  const { keys, leftOut } = await keysOf(list, "rejected");
  if (chosen !== $("top-limit").value) return;
  showTop(keys.toSorted((a, b) => b.rejected - a.rejected));
  const merged = list.length === MAX_MERGED_LIMITS ? `Only the ${list.length} limits with the most rejections. ` : "";
  setText($("top-note"), merged + (leftOut > 0 ? `${number(leftOut)} keys are left out.` : ""));
}

async function loadNear() {
  const list = mergedLimits("", (limit) => limit.used?.max ?? (recentHits(limit) || limit.near));
  const { keys } = await keysOf(list, "near");
  showNear(keys.toSorted((a, b) => (b.used ?? 0) - (a.used ?? 0)));
}

// ---- Upstreams and records ----

/** Rows are upstreams, each followed by its servers. */
const showUpstreams = createTable("upstreams", {
  key: ({ upstream, server }) => JSON.stringify([upstream.name, server?.server]),
  rowClass: ({ server }) => (server ? "part" : "whole"),
  empty: () => "The configuration has no upstream. Add an [upstream.NAME] with `servers`.",
  most: 40,
  cells: {
    name: ({ upstream, server }, cell) => showValue(cell, server ? server.server : upstream.name),
    circuit: showCircuit,
    "in-flight": (row) => number(sum(serversOf(row).map((server) => server.in_flight))),
    concurrency: ofUpstream(({ concurrency }) => number(concurrency?.limit)),
    shed: ofUpstream(({ concurrency }) => number(concurrency?.shed)),
    p50: ofUpstream(({ p50 }) => milliseconds(p50)),
    p99: ofUpstream(({ p99 }) => milliseconds(p99)),
    requests: ofUpstream(({ retries }) => number(retries?.requests)),
    retries: ofUpstream(({ retries }) => number(retries?.retries)),
    refused: ofUpstream(({ retries }) => number(retries?.refused)),
    succeeded: ofServer(({ circuit }) => number(circuit.window.succeeded)),
    failed: ofServer(({ circuit }) => number(circuit.window.failed)),
    openings: ofServer(({ circuit }) => number(circuit.openings)),
  },
});

function serversOf({ upstream, server }) {
  return server ? [server] : upstream.servers;
}

function ofUpstream(text) {
  return ({ upstream, server }) => (server ? "" : text(upstream));
}

function ofServer(text) {
  return ({ server }) => (server ? text(server) : "");
}

function showCircuit(row, cell) {
  const servers = serversOf(row);
  const available = servers.filter((it) => !it.ejected && it.circuit.state === "closed").length;
  cell.classList.toggle("bad", available < servers.length);
  return row.server ? stateOfServer(row.server) : `${available} of ${servers.length} available`;
}

function stateOfServer({ ejected, circuit }) {
  const parts = [circuit.state];
  if (circuit.held) parts.push("held by an operator");
  if (circuit.remaining_seconds !== undefined) parts.push(`for ${duration(circuit.remaining_seconds)} more`);
  if (circuit.state !== "closed" && circuit.opened_by) parts.push(`because of ${circuit.opened_by}`);
  return [...(ejected ? ["ejected by health checks"] : []), parts.join(", ")].join("; ");
}

async function loadUpstreams() {
  const { upstreams } = await call("upstreams");
  showUpstreams(upstreams.flatMap((upstream) => [{}, ...upstream.servers.map((server) => ({ server }))]
    .map((row) => ({ upstream, ...row }))));
}

/** `store` is null on Redis, where a count reads every record. */
function showRecords(store) {
  if (store === null) {
    setFigure("unknown", "–", "not counted on Redis", "");
    return showFacts($("records"), [["In Redis", "not counted"]]);
  }
  const { records, bytes: size, evictions, oldest_unknown: oldest } = store;
  const isOld = records.unknown > 0 && typeof oldest === "number";
  const note = isOld ? `the oldest for ${duration(oldest)}` : "";
  setFigure("unknown", number(records.unknown), note, records.unknown > 0 ? "warn" : "");
  showFacts($("records"), [
    ["In progress", number(records.in_progress)],
    ["Completed", number(records.completed)],
    ["Outcome unknown", number(records.unknown)],
    ["Oldest unknown", isOld ? duration(oldest) : "–"],
    ["Tombstones", number(records.tombstone)],
    ["Size", bytes(size)],
    ["Evictions", number(evictions)],
  ]);
}
