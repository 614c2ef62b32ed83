"use strict";

const PAGE = 50;            // services shown at once
const EVERY_MS = 2000;      // as often as the daemon takes a sample while somebody looks
const PATIENCE_MS = 8000;   // how long an answer may take
const NEWS_MS = 15000;      // how long a restart is told
const DOTS = 40;            // endpoints shown as dots in one row
const REMARKS = 2;          // faults of a source told one by one

const STATES = {
  problem: "with a problem", ill: "with ill endpoints", empty: "without endpoints", waiting: "starting", ok: "well",
};
const STANDINGS = {
  ready: "ready", aside: "does not answer", trial: "about to be tried again", terminating: "terminating",
  unready: "not ready", elsewhere: "ready, for others’ clients",
};
const REASONS = { refused: "refuses", timeout: "did not answer in time", unreachable: "is unreachable" };

const $ = (id) => document.getElementById(id);
const view = { search: "", state: "", sort: "problems", offset: 0, open: new Set() };
const rows = new Map();     // "namespace/name" -> its list item
let pid = null, timer = 0, running = null, newsUntil = 0;

// Elements are made from text alone, never from markup: names come from whoever may write to the cluster.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// Replaces an element's children only if they differ, so that what is selected or pointed at stays so.
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
  const [text, kind] = status.draining ? ["draining", "warn"] : status.healthy ? ["healthy", "ok"] : ["not healthy", "ill"];
  $("health").className = `pill ${kind}`;
  if ($("health").textContent !== text) $("health").textContent = text;
  $("about").textContent = `version ${status.version} · up ${seconds(Math.max(0, status.now - status.began))} · pid ${status.pid}`;
  showTraffic(status);
  showStates(status.totals);
  showNetfilter(status.netfilter);
  fill($("sources"), ...status.sources.map((source) => sourceLine(source, status.now)));
  fill($("workers"), ...status.workers.map(workerRow));
  $("restarts").textContent = status.restarts ? `${count(status.restarts)} died and were replaced` : "";
  fill($("incidents"), ...(status.incidents.length ? status.incidents.map(incidentLine) : [make("li", {}, "none")]));
}

function facts(pairs) {
  return pairs.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]);
}

function showTraffic({ totals, every_s: every }) {
  const { traffic, rates, trend } = totals;
  $("conn-rate").textContent = rates ? rate(rates.connections) : "–";
  spark($("total-trend"), trend ? trend.connections : FLAT, `connections per second, the last ${60 * every} seconds`);
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
    make("button", { type: "button", "data-state": state, "aria-pressed": String(view.state === state) },
      make("i", { class: `dot ${state}` }), `${count(totals.by_state[state])} ${STATES[state]}`))));
  if (chosen) $("states").querySelector(`[data-state="${chosen}"]`)?.focus();
}

function showNetfilter(filter) {
  $("adapter").textContent = filter.adapter;
  const synced = filter.programmed_ago_s === null ? "not yet" : `${seconds(filter.programmed_ago_s)} ago`;
  const waiting = filter.pending_s === null ? "all in effect" : `${filter.changes_pending ? `${count(filter.changes_pending)} ` : ""}for ${seconds(filter.pending_s)}`;
  fill($("netfilter"), ...facts([["last transaction", synced], [filter.pending_s === null ? "changes" : "changes wait", waiting]]),
    ...(filter.failing ? [make("dd", { class: "bad" }, filter.failing)] : []));
}

function sourceLine(source, now) {
  const well = source.listed && source.behind_s === 0;
  const state = !source.listed ? "not listed yet" : source.behind_s > 0 ? `behind by ${seconds(source.behind_s)}` : "follows";
  const last = source.last_event === null ? "" : `last news ${seconds(Math.max(0, now - source.last_event))} ago`;
  const more = source.faults > REMARKS ? "; …" : "";
  const told = `${count(source.faults)} faulty: ${source.remarks.slice(0, REMARKS).join("; ")}${more}`;
  const faults = source.faults ? make("small", { class: "bad" }, told) : "";
  const missing = source.left_out ? make("small", { class: "bad" }, `${count(source.left_out)} left out`) : "";
  return make("li", {}, make("i", { class: `dot ${!well ? "ill" : source.faults || source.left_out ? "empty" : "ok"}` }), make("b", {}, source.name),
    make("span", { class: well ? "push" : "push bad" }, state), make("small", {}, last), faults, missing);
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

function incidentLine(incident) {
  const when = new Date(incident.at * 1000);
  const times = incident.times > 1 ? ` (${count(incident.times)} times)` : "";
  return make("li", {}, make("time", { datetime: when.toISOString() }, when.toLocaleTimeString("en-GB")),
    make("b", { class: incident.level }, incident.level),
    make("span", {}, incident.text + times, " ", make("small", {}, incident.details)));
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
  if (!details.hidden) fill(details, ...service.frontends.map(listener));
}

function everybody(service) {
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
  const all = everybody(service), tally = {};
  for (const { standing } of all) tally[standing] = (tally[standing] || 0) + 1;
  element.setAttribute("aria-label", Object.entries(tally).map(([standing, n]) => `${n} ${STANDINGS[standing]}`).join(", ") || "no endpoints");
  fill(element,
    ...all.slice(0, DOTS).map((it) => make("i", { class: `dot ${it.standing}`, title: `${it.address}: ${explain(it)}` })),
    all.length > DOTS ? `+${count(all.length - DOTS)}` : all.length ? "" : "none");
}

function explain(endpoint) {
  const { standing } = endpoint;
  if (standing !== "aside" && standing !== "trial") {
    return standing === "terminating" && endpoint.used ? "terminating, serves while nobody is ready" : STANDINGS[standing];
  }
  const times = endpoint.failures > 1 ? ` (${endpoint.failures} times in a row)` : "";
  const next = standing === "aside" ? `passed over, tried again in ${seconds(endpoint.retry_in_s)}` : "the next client tries it";
  return `${REASONS[endpoint.reason] || endpoint.reason}${times}; ${next}`;
}

function noteOf(service) {
  if (service.problems.length) return service.problems.join("; ");
  const ill = everybody(service).find(({ standing }) => standing === "aside" || standing === "trial");
  if (ill) return `${ill.address} ${explain(ill)}`;
  if (service.state === "empty") {
    const empty = service.frontends.find((it) => it.when_empty === "refuse" && !it.endpoints.some(({ used }) => used));
    return `${empty.port ? `port ${empty.port}: ` : ""}no endpoints; clients are refused`;
  }
  return service.state === "waiting" ? "does not listen yet" : "";
}

function listener(frontend) {
  const scope = frontend.scope === "cluster" ? "" : ` (${frontend.scope})`;
  const port = frontend.proxy_port === null ? "does not listen yet" : `proxy port ${frontend.proxy_port}`;
  const c = frontend.counters;
  const lines = [`takes ${frontend.addresses.join(", ") || "nothing from outside"}`];
  if (frontend.own_addresses.length) lines.push(`from this node and its pods: ${frontend.own_addresses.join(", ")}`);
  if (frontend.source_ranges.length) lines.push(`load balancer addresses admit ${frontend.source_ranges.join(", ")}`);
  if (frontend.affinity_s !== null) lines.push(`a client stays ${frontend.affinity_s} s; ${count(c.affinity_entries)} bound now`);
  if (!frontend.endpoints.some(({ used }) => used)) {
    lines.push(`no endpoints ${frontend.when_empty === "refuse" ? "at all: clients are refused" : "on this node: clients are dropped"}`);
  }
  lines.push(`${count(c.accepted)} accepted, ${count(c.dial_retries)} retries; failed: ${count(c.refused)} refused, ` +
    `${count(c.silent)} silent, ${count(c.nobody)} nobody there, ${count(c.unable)} unable, ${count(c.looped)} looped`);
  return make("div", { class: "listener" },
    make("h3", {}, `${frontend.port ? `${frontend.port} ` : ""}${frontend.protocol} IPv${frontend.family}${scope}`, make("small", {}, port)),
    ...lines.map((line) => make("p", {}, line)),
    make("ul", { class: "endpoints", "aria-label": "Endpoints" }, ...frontend.endpoints.map((endpoint) => make("li", {},
      make("i", { class: `dot ${endpoint.standing}` }), make("code", {}, endpoint.address),
      make("span", { class: endpoint.standing }, explain(endpoint)),
      endpoint.node ? make("span", {}, `on ${endpoint.node}`) : "",
      endpoint.preserved ? make("span", {}, "dialed from the client’s address") : ""))));
}

// Asking

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
  const patience = setTimeout(() => mine.abort(), PATIENCE_MS);
  try {
    const answer = await fetch(address(), { signal: mine.signal, cache: "no-store" });
    if (!answer.ok) throw new Error(`it answered ${answer.status}`);
    show(await answer.json());
  } catch {
    if (mine !== running) return;
    document.body.classList.add("stale");
    notice("The daemon does not answer; what you see is how things were. Trying again.");
  } finally {
    clearTimeout(patience);
    if (mine === running) {
      running = null;
      timer = setTimeout(refresh, document.hidden ? 5 * EVERY_MS : EVERY_MS);
    }
  }
}

function show(status) {
  if (view.offset && status.offset >= status.matched) {
    view.offset = Math.max(0, PAGE * Math.floor((status.matched - 1) / PAGE));
  }
  if (pid !== null && pid !== status.pid) newsUntil = Date.now() + NEWS_MS;
  pid = status.pid;
  document.body.classList.remove("stale");
  const restarted = Date.now() < newsUntil ? "The daemon was restarted; its counters began anew." : "";
  notice([...status.complaints, restarted].filter(Boolean).join("\n"));
  showDaemon(status);
  showServices(status);
}

function turn(changes) {
  Object.assign(view, { offset: 0 }, changes);
  refresh();
}

let typing = 0;
$("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => turn({ search: event.target.value.trim() }), 150);
});
$("sort").addEventListener("change", (event) => turn({ sort: event.target.value }));
$("previous").addEventListener("click", () => turn({ offset: Math.max(0, view.offset - PAGE) }));
$("next").addEventListener("click", () => turn({ offset: view.offset + PAGE }));
$("states").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) turn({ state: view.state === button.dataset.state ? "" : button.dataset.state });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== $("search")) {
    event.preventDefault();
    $("search").focus();
  } else if (event.key === "Escape" && document.activeElement === $("search")) {
    $("search").value = "";
    turn({ search: "" });
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
