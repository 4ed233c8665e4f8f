// Buckets of one client or key, and the start of the page.

const showBuckets = createTable("buckets", {
  key: ({ limit }) => limit,
  empty: () => "",
  cells: {
    limit: ({ limit }) => limit,
    key: ({ key }, cell) => showValue(cell, key),
    tokens: ({ tokens, capacity }) => `${number(tokens, tokens % 1 ? 1 : 0)} of ${number(capacity)}`,
    used: ({ used }, cell) => showShare(cell, used),
    next: (bucket) => number(bucket.next_token, 1),
    full: (bucket) => number(bucket.full_in, 1),
    rejected: ({ recent }) => (recent ? countWithError(recent) : "0"),
    early: ({ recent }) => number(recent?.early ?? 0),
    attempts: ({ recent }) => number(recent?.attempts_per_admission, 1),
    last: ({ recent }) => clock(recent?.last),
    "user-agent": ({ recent }, cell) => showValue(cell, recent?.user_agent),
    refill: showRefill,
  },
});

function showRefill({ limit, shared }, cell) {
  if (!cell.firstChild) {
    const button = element("button", { type: "button", "aria-label": `Refill ${visible(limit)}` }, "Refill");
    button.addEventListener("click", () => refill(limit));
    cell.append(button, element("span"));
  }
  const { key } = limits.find(({ name }) => name === limit) ?? { key: [] };
  // This is the bucket of requests without the header. No value of the header leads to it.
  const isWithoutHeader = opened?.limit === null && isAddress(opened.value) && key.join() !== "client";
  cell.firstChild.hidden = shared || isWithoutHeader;
  setText(cell.lastChild, shared ? "shared with other keys" : isWithoutHeader ? "without the header" : "");
}

function isAddress(value) {
  return /^\d{1,3}(\.\d{1,3}){3}$/.test(value) || (value.includes(":") && /^[0-9a-f:.]+$/i.test(value));
}

/** Path of a bucket. The parts of a key of several parts are separated by slashes. */
function bucketPath(limit, value) {
  const hasParts = limits.find(({ name }) => name === limit)?.key.length > 1;
  const parts = hasParts ? value.split("/") : [value];
  // A browser would resolve these parts, and call another endpoint.
  if (parts.some((part) => part === "." || part === "..")) throw new ApiError(400, "A key cannot be . or ..");
  return `limits/${encodeURIComponent(limit)}/keys/${parts.map(encodeURIComponent).join("/")}`;
}

async function bucketsOf({ value, limit }) {
  if (limit === null && isAddress(value)) return call(`clients/${encodeURIComponent(value)}`);
  const byHeader = limits.filter(({ key }) => key.some((part) => part.startsWith("header:")));
  const names = limit === null ? byHeader.map(({ name }) => name) : [limit];
  const buckets = [];
  for (const name of names) {
    try {
      buckets.push(await call(bucketPath(name, value)));
    } catch (error) {
      // The key has other parts than this limit, or a reload has removed the limit.
      if (limit !== null || ![400, 404].includes(error.status)) throw error;
    }
  }
  return { buckets };
}

async function loadClient() {
  const client = opened;
  let found = { buckets: [] };
  let note = "";
  try {
    found = await bucketsOf(client);
    if (found.exempt) note = "This client is exempt from limits.";
    else if (found.buckets.length === 0) note = "No limit of the configuration counts by this.";
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) throw error;
    note = error.message;
  }
  if (client !== opened) return;
  setText($("client-note"), note);
  showBuckets(found.buckets);
}

async function refill(limit) {
  const { value } = opened;
  const bucket = `the bucket of ${visible(value)} in the limit ${visible(limit)}`;
  if (!confirm(`Refill ${bucket}?`)) return;
  try {
    await call(bucketPath(limit, value), "DELETE");
    setText($("refill-result"), `${clock(new Date())}: refilled ${bucket}.`);
  } catch (error) {
    setText($("refill-result"), `${clock(new Date())}: could not refill ${bucket}: ${error.message}`);
  }
  loadNow();
}

async function explain() {
  const lines = $("explain-headers").value.split("\n").filter((line) => line.trim());
  const headers = Object.fromEntries(lines.map((line) => line.split(/:(.*)/s, 2).map((part) => part.trim())));
  const peer = isAddress(opened.value) ? { peer: opened.value } : {};
  const request = { method: $("explain-method").value.trim(), path: $("explain-path").value.trim(), headers, ...peer };
  try {
    const { outcome, lines, limits: states } = await call("explain", "POST", request);
    setText($("explain-outcome"), outcome);
    const others = lines.filter(({ name }) => name !== "outcome").map(({ name, value }) => [name, value]);
    const now = states.map(({ limit, tokens, capacity, admits, wait }) => {
      return [`${limit} now`, `${number(tokens)} of ${number(capacity)} tokens, ${admits ? "admits" : "rejects"}`
        + `${wait > 0 ? `, wait ${duration(wait)}` : ""}`];
    });
    showFacts($("explain-lines"), [...others, ...now]);
  } catch (error) {
    setText($("explain-outcome"), error.message);
    showFacts($("explain-lines"), []);
  }
}

/** Opens the client that the fragment of the URL names, so that a link can be shared. */
function openClient() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const value = fragment.get("client");
  // Other fragments are links within the page.
  if (value === null && location.hash.length > 1) return;
  opened = value ? { value, limit: fragment.get("limit") } : null;
  $("client").hidden = opened === null;
  for (const id of ["client-note", "refill-result", "explain-outcome"]) setText($(id), "");
  showFacts($("explain-lines"), []);
  showBuckets([]);
  if (opened === null) return;
  setText($("client-name"), opened.limit === null ? value : `${value} in ${opened.limit}`);
  setText($("client-note"), "Loading.");
  $("find-value").value = value;
  $("client-title").focus();
  $("client").scrollIntoView();
  loadNow();
}

// ---- Start ----

function onSubmit(id, action) {
  $(id).addEventListener("submit", (event) => {
    event.preventDefault();
    action();
  });
}

new ResizeObserver(drawPlot).observe($("plot"));
setText($("instance"), location.host);
setText($("zone"), Intl.DateTimeFormat().resolvedOptions().timeZone);
onSubmit("token-form", enterToken);
onSubmit("explain", explain);
onSubmit("find", () => {
  const value = $("find-value").value.trim();
  const hash = value ? `#${new URLSearchParams({ client: value })}` : "#";
  if (location.hash === hash) openClient();
  else location.hash = hash;
});
$("top-limit").addEventListener("change", loadNow);
addEventListener("hashchange", openClient);
document.addEventListener("visibilitychange", loadDue);
follow("overview", 2, loadOverview);
follow("limits", 2, loadLimits);
follow("upstreams", 3, loadUpstreams);
follow("top keys", 3, loadTop, () => limits !== null);
follow("keys close to their limit", 5, loadNear, () => limits !== null);
follow("client", 2, loadClient, () => limits !== null && opened !== null);
openClient();
setInterval(loadDue, 250);
