"use strict";

const PAGE = 50;                // services shown at once
const REFRESH_MS = 2000;        // the daemon's interval between two samples
const TIMEOUT_MS = 8000;        // how long an answer may take
const RESTART_SHOWN_MS = 15000; // how long the page mentions a restart
const DOTS = 40;                // endpoints shown as dots in one row
const PROBLEMS = 2;             // problems of a source shown one by one

const STATES = {
  problem: "not served, or only in part", ejected: "an endpoint is ejected", empty: "no endpoints",
  waiting: "does not listen yet", ok: "served",
};
const STANDINGS = {
  ready: "ready", ejected: "ejected", probing: "probing", terminating: "gets no new clients",
  draining: "a rollout drains it", unready: "not ready", elsewhere: "ready, but traffic policy or topology hints exclude it",
};
const REASONS = {
  refused: "refuses", timeout: "did not answer in time", silent: "did not answer in time", unreachable: "is unreachable",
};
const NOT_ASKED = "kubeproxy.dataPath is userspace";

const $ = (id) => document.getElementById(id);
const view = { search: "", state: "", sort: "problems", offset: 0, open: new Set() };
const rows = new Map();     // "namespace/name" -> its list item
let pid = null, timer = 0, running = null, restartShownUntil = 0;

// Elements are made from text alone, never from markup: any writer to the cluster chooses names.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Replaces an element's children only if they differ, so that selection and hover state stay.
function fill(element, ...children) {
  const fresh = make(element.tagName, {}, ...children);
  if (fresh.innerHTML !== element.innerHTML) element.replaceChildren(...fresh.childNodes);
}

// Numbers

function seconds(s) {
  if (s < 10) return `${s.toFixed(1)} s`;
  s = Math.round(s);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 999.5) return `${unit === "B" || n >= 99.95 ? Math.round(n) : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

const count = (n) => n.toLocaleString("en");
const rate = (n) => n > 0 && n < 9.95 ? n.toFixed(1) : count(Math.round(n));

// Sparklines

function spark(svg, points, label) {
  const most = Math.max(...points, 0), high = most || 1;
  svg.classList.toggle("flat", most === 0);
  svg.setAttribute("aria-label", label);
  const line = points.map((value, x) => `${x ? "L" : "M"}${x} ${(19 - 17 * value / high).toFixed(2)}`).join("");
  if (svg.children.length === 0) {
    for (const kind of ["area", "line"]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", kind);
      svg.append(path);
    }
  }
  svg.children[0].setAttribute("d", line && `${line}L${points.length - 1} 20L0 20Z`);
  svg.children[1].setAttribute("d", line);
}

function sparkline(kind) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `spark ${kind}`);
  svg.setAttribute("viewBox", "0 0 59 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  return svg;
}

const FLAT = new Array(60).fill(0);

// The daemon

function showDaemon(status) {
  $("node").textContent = status.node;
  document.title = `${status.healthy ? "" : "⚠ "}kubeproxy ${status.node}`;
  const warn = status.draining || status.problems.length || status.totals.by_state.problem;
  $("health").className = `pill ${!status.healthy && !status.draining ? "error" : warn ? "warn" : "ok"}`;
  if ($("health").textContent !== status.summary) $("health").textContent = status.summary;
  $("about").textContent = `version ${status.version} · up ${seconds(Math.max(0, status.now - status.began))} · pid ${status.pid}`;
  showTraffic(status);
  showStates(status.totals);
  showNetfilter(status.netfilter, status.data_paths);
  fill($("sources"), ...configurationLine(status.configuration), ...status.sources.map((source) => sourceLine(source, status.now)));
  fill($("workers"), ...status.workers.map(workerRow));
  $("restarts").textContent = status.restarts ? `${count(status.restarts)} died and were replaced` : "";
  fill($("warnings"), ...(status.recent_warnings.length ? status.recent_warnings.map(warningLine) : [make("li", {}, "none")]));
}

function facts(pairs) {
  return pairs.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]);
}

function showTraffic({ totals, interval_s: interval }) {
  const { traffic, rates, trend } = totals;
  $("conn-rate").textContent = rates ? rate(rates.connections) : "–";
  const back = `the last ${seconds(60 * interval)}`;
  spark($("total-trend"), trend ? trend.connections : FLAT, `connections per second, ${back}`);
  const failures = trend ? trend.failures : FLAT, failing = failures.some((value) => value > 0);
  $("failing").hidden = !failing;
  spark($("failure-trend"), failures, `failed connections per second, ${back}`);
  $("failure-peak").textContent = `up to ${rate(Math.max(...failures))} failed/s`;
  $("trend-began").textContent = `${seconds(60 * interval)} ago`;
  $("trend-peak").textContent = trend ? `up to ${rate(Math.max(...trend.connections))}/s` : "";
  fill($("traffic"), ...facts([
    ["open", count(traffic.active)], ["in", rates ? `${bytes(rates.bytes_in)}/s` : "–"],
    ["accepted", count(traffic.accepted)], ["out", rates ? `${bytes(rates.bytes_out)}/s` : "–"],
    ["failed", count(traffic.failed)], ["so far", bytes(traffic.bytes_in + traffic.bytes_out)],
  ]));
}

function showStates(totals) {
  $("service-count").textContent = count(totals.services);
  const present = Object.keys(STATES).filter((state) => totals.by_state[state] || state === view.state);
  fill($("bar"), ...present.map((state) => make("i", { class: state, "data-share": totals.by_state[state] })));
  for (const part of $("bar").children) part.style.flexGrow = part.dataset.share;
  const chosen = document.activeElement && document.activeElement.dataset.state;
  fill($("states"), ...present.map((state) => make("li", {},
    make("button", { type: "button", title: STATES[state], "data-state": state, "aria-pressed": String(view.state === state) },
      make("i", { class: `dot ${state}` }), `${count(totals.by_state[state])} ${state}`))));
  if (chosen) $("states").querySelector(`[data-state="${chosen}"]`)?.focus();
}

function dataPaths(paths) {
  if (!paths || paths.wanted === "userspace") return [];
  const pairs = [["by the kernel", `${count(paths.kernel)} frontends`], ["by userspace", `${count(paths.userspace)} frontends`]];
  const rescue = paths.rescue;
  if (rescue) pairs.push(["rescue", `${rescue.working ? "works" : "inert"} for ${seconds(rescue.since_s)}, ${count(rescue.resent)} sent again`]);
  const flows = paths.flows;
  if (flows) pairs.push(["open by the kernel", flows.problem ? "unknown" : `${count(flows.open)}${flows.bytes_counted ? "" : "; bytes are not counted: nf_conntrack_acct is not 1"}`]);
  const bad = rescue && !rescue.working
    ? [make("dd", { class: "bad" }, `clients meet failed endpoints${rescue.problem ? `: ${rescue.problem}` : ""}`)] : [];
  if (flows && flows.problem) bad.push(make("dd", { class: "bad" }, flows.problem));
  return [...facts(pairs), ...bad];
}

function showNetfilter(filter, paths) {
  $("adapter").textContent = filter.adapter;
  const synced = filter.programmed_ago_s === null ? "not yet" : `${seconds(filter.programmed_ago_s)} ago`;
  const waiting = filter.pending_s === null ? "all in effect" : `${filter.changes_pending ? `${count(filter.changes_pending)} ` : ""}for ${seconds(filter.pending_s)}`;
  fill($("netfilter"), ...facts([["last transaction", synced], [filter.pending_s === null ? "changes" : "changes pending", waiting]]),
    ...(filter.failing ? [make("dd", { class: "bad" }, filter.failing)] : []), ...dataPaths(paths));
}

function configurationLine(configuration) {
  if (!configuration || !(configuration.faults.length || configuration.needs_restart.length)) return [];
  const [kind, state] = configuration.faults.length
    ? ["error", `invalid, the previous one is in effect: ${configuration.faults.slice(0, PROBLEMS).join("; ")}`]
    : ["empty", `restart needed for ${configuration.needs_restart.join(", ")}`];
  return [make("li", {}, make("i", { class: `dot ${kind}` }), make("b", {}, "configuration"),
    make("small", { class: "bad" }, state))];
}

function sourceLine(source, now) {
  const current = source.listed && source.behind_s === 0;
  const earlier = source.stale_since === null ? "" : `: state of an earlier run, ${seconds(Math.max(0, now - source.stale_since))} old`;
  const state = !source.listed ? `not listed yet${earlier}` : source.behind_s > 0 ? `behind by ${seconds(source.behind_s)}` : "up to date";
  const last = source.last_event === null ? "" : `last event ${seconds(Math.max(0, now - source.last_event))} ago`;
  const more = source.faults > PROBLEMS ? "; …" : "";
  const text = `${count(source.faults)} faulty: ${source.problems.slice(0, PROBLEMS).join("; ")}${more}`;
  const faults = source.faults ? make("small", { class: "bad" }, text) : "";
  const warnings = source.warnings ? make("small", {}, `${count(source.warnings)} warning${source.warnings > 1 ? "s" : ""}`) : "";
  const missing = source.left_out ? make("small", { class: "bad" }, `${count(source.left_out)} left out`) : "";
  return make("li", {}, make("i", { class: `dot ${!current ? "error" : source.faults || source.left_out ? "empty" : "ok"}` }), make("b", {}, source.name),
    make("span", { class: current ? "push" : "push bad" }, state), make("small", {}, last), faults, warnings, missing);
}

function workerRow(worker) {
  const { descriptors, descriptors_limit: limit } = worker;
  const sessions = worker.udp_sessions ? ` + ${count(worker.udp_sessions)} UDP` : "";
  return make("tr", {}, make("th", { scope: "row" }, String(worker.pid)),
    make("td", {}, `${count(worker.connections)}${sessions}`),
    make("td", {}, `${(worker.lag_s * 1000).toFixed(1)} ms`),
    make("td", { title: `${count(descriptors)} of ${count(limit)}` }, count(descriptors),
      make("meter", { min: 0, max: limit, high: 0.8 * limit, value: descriptors, "aria-label": `of ${count(limit)}` })));
}

function warningLine(warning) {
  const when = new Date(warning.at * 1000);
  const times = warning.times > 1 ? ` (${count(warning.times)} times)` : "";
  return make("li", {}, make("time", { datetime: when.toISOString() }, when.toLocaleTimeString("en-GB")),
    make("b", { class: warning.level }, warning.level),
    make("span", {}, warning.text + times, " ", make("small", {}, warning.details)));
}

// Services

function showServices(status) {
  const list = $("services"), shown = new Set();
  status.services.forEach((service, place) => {
    const key = `${service.namespace}/${service.name}`;
    shown.add(key);
    let row = rows.get(key);
    if (!row) rows.set(key, row = makeRow(key, service));
    update(row, service);
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] || null);
  });
  for (const [key, row] of rows) {
    if (!shown.has(key)) { row.remove(); rows.delete(key); }
  }
  $("nothing").hidden = status.services.length > 0;
  list.hidden = status.services.length === 0;
  const last = status.offset + status.services.length;
  $("range").textContent = last ? `${count(status.offset + 1)}–${count(last)} of ${count(status.matched)}` : "";
  $("previous").disabled = status.offset === 0;
  $("next").disabled = last >= status.matched;
}

function makeRow(key, service) {
  const button = make("button", { type: "button", class: "row", "aria-expanded": String(view.open.has(key)) },
    make("span", { class: "name" }, make("i", { class: "dot" }),
      make("span", { title: key }, make("em", {}, `${service.namespace}/`), service.name)),
    make("span", { class: "dots", role: "img" }),
    make("span", { class: "trend" }, sparkline("connections"), make("b")),
    make("span", { class: "trend" }, sparkline("bytes"), make("b")),
    make("span", { class: "number", "data-label": "open" }), make("span", { class: "number", "data-label": "failed" }),
    make("span", { class: "chevron", "aria-hidden": "true" }, "›"));
  const row = make("li", { "data-service": key }, button, make("p", { class: "note" }), make("div", { class: "details", hidden: true }));
  button.addEventListener("click", () => {
    const open = !view.open.delete(key);
    if (open) view.open.add(key);
    button.setAttribute("aria-expanded", String(open));
    update(row, row.service);
  });
  return row;
}

function update(row, service) {
  row.service = service;
  const [button, note, details] = row.children;
  const [name, dots, connections, moved, open, failed] = button.children;
  name.firstChild.className = `dot ${service.state}`;
  name.firstChild.title = STATES[service.state];
  showDots(dots, service);
  const { rates, trend, traffic } = service;
  const title = `${service.namespace}/${service.name}`;
  spark(connections.children[0], trend ? trend.connections : FLAT, `connections per second to ${title}`);
  spark(moved.children[0], trend ? trend.bytes : FLAT, `bytes per second of ${title}`);
  connections.children[1].textContent = rates ? rate(rates.connections) : "–";
  moved.children[1].textContent = rates ? bytes(rates.bytes_in + rates.bytes_out) : "–";
  open.textContent = count(traffic.active);
  open.classList.toggle("zero", traffic.active === 0);
  failed.textContent = count(traffic.failed);
  failed.classList.toggle("zero", traffic.failed === 0);
  failed.classList.toggle("failed", traffic.failed > 0);
  note.className = `note ${service.state}`;
  note.textContent = noteOf(service);
  note.hidden = !note.textContent;
  details.hidden = !view.open.has(title);
  if (!details.hidden) fill(details, ...curves(service.trend), ...service.frontends.map(listener));
}

function endpointsOf(service) {
  const found = new Map();
  for (const { endpoints } of service.frontends) {
    for (const endpoint of endpoints) {
      const known = found.get(endpoint.address);
      if (!known || (!known.used && endpoint.used)) found.set(endpoint.address, endpoint);
    }
  }
  return [...found.values()];
}

function showDots(element, service) {
  const all = endpointsOf(service), counts = {};
  for (const { standing } of all) counts[standing] = (counts[standing] || 0) + 1;
  element.setAttribute("aria-label", Object.entries(counts).map(([standing, n]) => `${n} ${standing}`).join(", ") || "no endpoints");
  fill(element,
    ...all.slice(0, DOTS).map((it) => make("i", { class: `dot ${it.standing}`, title: `${it.address}: ${explain(it)}` })),
    all.length > DOTS ? `+${count(all.length - DOTS)}` : all.length ? "" : "none");
}

function explain(endpoint) {
  const { standing } = endpoint;
  if (standing !== "ejected" && standing !== "probing") {
    if (standing === "draining") {
      if (endpoint.by_hand) return `taken out by hand: gets ${endpoint.used ? "new clients for lack of another endpoint" : "no new clients"}`;
      const added = endpoint.used ? "gets new clients for lack of another endpoint" : "gets no new clients";
      return `${STANDINGS.draining}: ${added}, ${count(endpoint.open)} open`;
    }
    return standing === "terminating" && endpoint.used ? "serves while no endpoint is ready" : STANDINGS[standing];
  }
  const times = endpoint.failures > 1 ? ` (${endpoint.failures} times in a row)` : "";
  const byKernel = endpoint.noticed_by === "rescue";
  const probing = byKernel ? "a dial probes it now" : "the next client probes it";
  const next = standing === "ejected" ? `next probe in ${seconds(endpoint.retry_in_s)}` : probing;
  const noticed = byKernel ? ", noticed on the kernel path" : "";
  const since = endpoint.ejected_for_s >= 1 ? `, for ${seconds(endpoint.ejected_for_s)}` : "";
  return `${REASONS[endpoint.reason] || endpoint.reason}${times}${since}${noticed}; ${next}`;
}

function noteOf(service) {
  if (service.problems.length) return service.problems.join("; ");
  const ejected = endpointsOf(service).find(({ standing }) => standing === "ejected" || standing === "probing");
  if (ejected) return `${ejected.address} ${explain(ejected)}`;
  if (service.state === "empty") {
    const empty = service.frontends.find((it) => it.when_empty === "refuse" && !it.endpoints.some(({ used }) => used));
    return `${empty.port ? `port ${empty.port}: ` : ""}no endpoints; clients are refused`;
  }
  return service.state === "waiting" ? "does not listen yet" : "";
}

// Of one Service: what its row shows small, with a scale and a time axis, and its failures.
function curves(trend) {
  if (!trend) return [];
  const interval = REFRESH_MS / 1000;
  const kinds = [["connections", trend.connections, rate, "/s"], ["bytes", trend.bytes, bytes, "/s"]];
  if (trend.failures.some((value) => value > 0)) kinds.push(["failures", trend.failures, rate, " failed/s"]);
  return [make("div", { class: "curves" }, ...kinds.map(([name, points, format, unit]) => {
    const svg = sparkline(`wide ${name}`), most = format(Math.max(...points));
    spark(svg, points, `${name} per second, the last ${seconds(60 * interval)}, up to ${most}${unit}`);
    return make("figure", {}, svg, make("figcaption", { class: "axis" },
      make("span", {}, `${seconds(60 * interval)} ago`), make("span", {}, `up to ${most}${unit}`), make("span", {}, "now")));
  }))];
}

function listener(frontend) {
  const scope = frontend.scope === "cluster" ? "" : ` (${frontend.scope})`;
  const port = frontend.proxy_port === null ? "does not listen yet" : `proxy port ${frontend.proxy_port}`;
  const c = frontend.counters;
  const lines = [`addresses ${frontend.addresses.join(", ") || "none for other hosts"}`];
  if (frontend.own_addresses.length) lines.push(`addresses for this node and its pods: ${frontend.own_addresses.join(", ")}`);
  if (frontend.source_ranges.length) lines.push(`load balancer addresses admit only ${frontend.source_ranges.join(", ")}`);
  if (frontend.data_path === "kernel") {
    lines.push(`data path kernel, to ${count(frontend.targets.length)} endpoints; ${count(c.by_kernel)} connections so far`);
  } else if (frontend.data_path_reason && frontend.data_path_reason !== NOT_ASKED) {
    lines.push(`data path userspace: ${frontend.data_path_reason}`);
  }
  if (frontend.data_path === "kernel" || c.kernel_open || c.kernel_bytes_in) {
    lines.push(`by the kernel: ${count(c.kernel_open)} open, ${frontend.kernel_bytes ? `${bytes(c.kernel_bytes_in)} in, ${bytes(c.kernel_bytes_out)} out` : "bytes are not counted"}`);
  }
  lines.push(`scheduler ${frontend.scheduler}`);
  if (frontend.affinity_s !== null) lines.push(`affinity ClientIP, ${frontend.affinity_s} s; ${count(c.affinity_entries)} clients bound`);
  if (!frontend.endpoints.some(({ used }) => used)) {
    lines.push(`no endpoints ${frontend.when_empty === "refuse" ? "at all: clients are refused" : "on this node: clients are dropped"}`);
  }
  lines.push(`${count(c.accepted)} accepted, ${count(c.dial_retries)} retries; failed: ${count(c.refused)} refused, ${count(c.unreachable)} unreachable, ` +
    `${count(c.silent)} timeout, ${count(c.no_endpoint)} no endpoint, ${count(c.unable)} local, ${count(c.looped)} loop`);
  return make("div", { class: "listener" },
    make("h3", {}, `${frontend.port ? `${frontend.port} ` : ""}${frontend.protocol} IPv${frontend.family}${scope}`, make("small", {}, port)),
    ...lines.map((line) => make("p", {}, line)),
    make("ul", { class: "endpoints", "aria-label": "Endpoints" }, ...frontend.endpoints.map((endpoint) => make("li", {},
      make("i", { class: `dot ${endpoint.standing}` }), make("code", {}, endpoint.address),
      make("span", { class: endpoint.standing }, explain(endpoint)),
      endpoint.node ? make("span", {}, `on ${endpoint.node}`) : "",
      endpoint.weight > 1 ? make("span", {}, `weight ${endpoint.weight} (${Math.round(100 * endpoint.share)} %)`) : "",
      endpoint.open && endpoint.standing !== "draining" ? make("span", {}, `${count(endpoint.open)} open`) : "",
      endpoint.preserved ? make("span", {}, "dialed from the client’s address") : ""))));
}

// Requests

function address() {
  const query = new URLSearchParams({ limit: PAGE, offset: view.offset, sort: view.sort });
  if (view.search) query.set("search", view.search);
  if (view.state) query.set("state", view.state);
  return `statusz.json?${query}`;
}

function notice(text) {
  if ($("notice").textContent !== text) $("notice").textContent = text;
  $("notice").hidden = !text;
}

async function refresh() {
  clearTimeout(timer);
  if (running) running.abort();
  const mine = running = new AbortController();
  const timeout = setTimeout(() => mine.abort(), TIMEOUT_MS);
  try {
    const answer = await fetch(address(), { signal: mine.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    show(await answer.json());
  } catch {
    if (mine !== running) return;
    document.body.classList.add("stale");
    notice("The daemon does not answer; the page shows its last answer and tries again.");
  } finally {
    clearTimeout(timeout);
    if (mine === running) {
      running = null;
      timer = setTimeout(refresh, document.hidden ? 5 * REFRESH_MS : REFRESH_MS);
    }
  }
}

function show(status) {
  if (view.offset && status.offset >= status.matched) {
    view.offset = Math.max(0, PAGE * Math.floor((status.matched - 1) / PAGE));
  }
  if (pid !== null && pid !== status.pid) restartShownUntil = Date.now() + RESTART_SHOWN_MS;
  pid = status.pid;
  document.body.classList.remove("stale");
  const restarted = Date.now() < restartShownUntil ? "The daemon was restarted; its counters started at 0." : "";
  notice([...status.problems, restarted].filter(Boolean).join("\n"));
  showDaemon(status);
  showServices(status);
}

function change(changes) {
  Object.assign(view, { offset: 0 }, changes);
  refresh();
}

let typing = 0;
$("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ search: event.target.value.trim() }), 150);
});
$("sort").addEventListener("change", (event) => change({ sort: event.target.value }));
$("previous").addEventListener("click", () => change({ offset: Math.max(0, view.offset - PAGE) }));
$("next").addEventListener("click", () => change({ offset: view.offset + PAGE }));
$("states").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) change({ state: view.state === button.dataset.state ? "" : button.dataset.state });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== $("search")) {
    event.preventDefault();
    $("search").focus();
  } else if (event.key === "Escape" && document.activeElement === $("search")) {
    $("search").value = "";
    change({ search: "" });
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
