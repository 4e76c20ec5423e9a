// The first page: everything in one look.

import { ago, badge, both, bytes, clock, count, dollars, empty, figure, h, link, panel, path, problem, rate, refill, short, span, sparkline, table, tile } from "./dom.js";

const total = (queues, name) => queues.reduce((sum, each) => sum + (each[name] ?? 0), 0);
const least = (queues, name) => queues.some((each) => each.at_least.includes(name));
const tally = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;
const plus = (value, more) => short(value) + (more ? "+" : "");

/** The age of the oldest task now: as of the reading, and the time since. */
export function oldest(queue, at) {
  if (queue.oldest_s === null || queue.oldest_s === undefined) return h("span", { class: "zero" }, "–");
  return span(queue.oldest_s + (Date.now() - new Date(at).getTime()) / 1000) + (queue.at_least.includes("oldest_s") ? "+" : "");
}

const SOURCES = { receipts: "by the times of the receipts in the store", events: "by the events that workers recorded" };

export function finished(queue) {
  const sum = (queue.minutes ?? []).reduce((all, each) => all + each, 0);
  if (!queue.rate_source) return h("span", { class: "faint" }, "–");
  return sparkline(minutes(queue.minutes), `${queue.rate_at_least ? "at least " : ""}${count(sum)} tasks ended in the last hour, ${SOURCES[queue.rate_source]}`);
}

const minutes = (values) => (values?.length ? values : Array(60).fill(0));

/** Where the depth of the last hour comes from, in words. */
export function depthSource(queue) {
  const seen = `seen since ${clock(queue.depth_since)}`;
  return queue.depth_source === "events" ? `by events; ${seen}` : seen;
}

/** How many tasks had not ended, over the last hour. */
export function depth(queue) {
  if (!queue.depth_source) return h("span", { class: "faint" }, "–");
  return sparkline(minutes(queue.depth), `tasks that had not ended, ${queue.depth_at_least ? "at least, " : ""}${depthSource(queue)}`);
}

function historyNote(found) {
  const known = found.queues.filter((each) => each.depth_source);
  if (!known.length) return "";
  const ended = [...new Set(found.queues.map((each) => each.rate_source).filter(Boolean))].join(" and ");
  const first = known.map((each) => each.depth_since).sort()[0];
  const events = known.some((each) => each.depth_source === "events") ? "events, and " : "";
  return `Last hour: ended by ${ended || "nothing"}; depth by ${events}what this page's server has seen since ${clock(first)}`;
}

/** A badge for the state of a queue, unless it is as it should be. */
export function stateBadge(queue) {
  if (queue.state === "no worker") return h("span", { title: "A task is due, and no living worker names this queue: limpet work" }, badge("no worker", "bad"));
  return queue.state === "paused" ? badge("paused", "warn") : null;
}

/** Badges for tasks that are neither waiting nor running; on a phone, where there is no column for them, also for those that rest. */
function idle(queue) {
  const bound = (name) => (queue.at_least.includes(name) ? "+" : "");
  const rests = (queue.resting ?? 0) - (queue.suspended ?? 0);
  return [
    queue.cancelled ? [" ", badge(`${short(queue.cancelled)}${bound("cancelled")} cancelled`)] : null,
    queue.suspended ? [" ", h("span", { title: queue.suspended_reason }, badge(`${short(queue.suspended)}${bound("suspended")} suspended`))] : null,
    queue.waits_for_code ? [" ", h("span", { title: queue.suspended_reason }, badge(`${short(queue.waits_for_code)}${bound("waits_for_code")} waits for code`, "bad"))] : null,
    rests > 0 ? h("span", { class: "phone-only" }, " ", badge(`${short(rests)}${bound("resting")} resting`)) : null,
  ];
}

export function queueTable(found) {
  const bound = (queue, name) => ({ least: queue.at_least.includes(name) });
  return table("queues",
    [["Queue", "name"], ["Waiting", "num"], ["Running", "num"], ["Resting", "num phone-off"], ["Scheduled", "num phone-off"], ["Failed", "num"], ["Oldest", "num"], ["Per minute", "num phone-off"], ["Ended, last hour", "phone-off"], ["Depth, last hour", "phone-off"]],
    found.queues.map((each) => [
      [link(path("queue", each.queue), each.queue), each.state === "ok" ? null : [" ", stateBadge(each)], idle(each), each.trouble ? [" ", badge("trouble", "bad")] : null],
      figure(each.waiting, bound(each, "waiting")), figure(each.in_flight, bound(each, "in_flight")), figure(each.resting, bound(each, "resting")), figure(each.scheduled, bound(each, "scheduled")),
      figure(each.failed, { ...bound(each, "failed"), bad: true }), oldest(each, found.read_at.queues), figure(each.per_minute, { text: rate, least: each.rate_at_least }), finished(each), depth(each),
    ]));
}

/** Why some figures are lower bounds, or missing. */
export function sampleNote(found) {
  const cut = found.queues.some((each) => each.at_least.length);
  const notes = [];
  if (cut) notes.push("+ at least: counting stops at 999 objects of a kind, and receipts of failed tasks are read 200 at a time");
  if (found.uncounted.length) notes.push(`${count(found.uncounted.length)} queues are counted in turn`);
  if (found.queues.some((each) => each.approximate)) notes.push("numbers of SQS: approximate, and late by up to a minute");
  return notes.join("; ");
}

export function queuesPanel(found) {
  const body = found.queues.length ? queueTable(found) : empty("No queue was ever used here. ", h("code", {}, "limpet queue push NAME '{}'"), " makes one.");
  const left = found.uncounted.length ? h("p", { class: "empty" }, `Not counted yet: ${found.uncounted.slice(0, 8).join(", ")}${found.uncounted.length > 8 ? ` and ${count(found.uncounted.length - 8)} more` : ""}`) : null;
  return panel("Queues", sampleNote(found), found.trouble.queues ? problem(found.trouble.queues) : null, body, left, found.queues.length ? h("p", { class: "source" }, historyNote(found)) : null);
}

export function indexTable(found, { brief = false } = {}) {
  const columns = [["Index", "name"], ["Records", "num"], ["Size", "num phone-off"], ["Waiting", "num"], ["Oldest", "num nowrap phone-off"], ["Compiled", "num nowrap"], ["Quarantine", "num phone-off"]];
  const rows = found.indexes.map((each) => [
    [link(path("index", each.name), each.name), each.trouble ? [" ", badge("trouble", "bad")] : null],
    figure(each.records), figure(each.bytes, { text: bytes }), figure(each.waiting, { least: each.at_least.includes("waiting") }),
    each.oldest_at ? ago(each.oldest_at) : h("span", { class: "zero" }, "–"), ago(each.compiled_at), figure(each.quarantined, { bad: true, least: each.at_least.includes("quarantined") }),
  ]);
  const without = (cells) => (brief ? cells.filter((_, at) => at !== 4) : cells);
  return table("indexes", without(columns), rows.map(without));
}

function alertLine(alert) {
  const bound = alert.bound === "exact" ? "" : `${alert.bound} `;
  if (alert.value === null) return `it cannot be checked: SQS does not report ${alert.rule === "no-worker" ? "who works on a queue" : "how old a task is"}`;
  if (alert.rule === "no-worker") return `no worker, and a task has been due for ${span(alert.value)}; the limit is ${span(alert.limit)}`;
  if (alert.rule === "max-age") return `the oldest task was pushed ${bound}${span(alert.value)} ago; the limit is ${span(alert.limit)}`;
  const what = alert.rule === "max-failed" ? "failed" : "waiting";
  return `${bound}${count(alert.value)} ${alert.value === 1 ? "task" : "tasks"} ${what}; the limit is ${count(alert.limit)}`;
}

function alerts(found) {
  if (!found.alerts.length) return null;
  return h("ul", { class: "alerts", "aria-label": "Alerts" }, found.alerts.slice(0, 12).map((each) =>
    h("li", { class: ["max-failed", "no-worker"].includes(each.rule) ? "bad" : "" }, link(path("queue", each.queue), each.queue, { class: "link" }), h("span", { class: "why" }, alertLine(each)), h("span", { class: "faint mono phone-off" }, `limpet check --${each.rule}`))),
  found.alerts.length > 12 ? h("li", {}, `and ${count(found.alerts.length - 12)} more`) : null);
}

function tiles(found) {
  const queues = found.queues;
  const summed = (name) => queues.filter((each) => each[name]?.length).reduce((all, each) => each[name].map((value, at) => (value === null ? (all[at] ?? null) : value + (all[at] ?? 0))), []);
  const [hour, depths] = [summed("minutes"), summed("depth")];
  const done = hour.reduce((all, each) => all + each, 0);
  const alive = found.workers?.workers.filter((each) => !each.gone);
  const held = found.locks.locks.filter((each) => each.state !== "free");
  const bill = found.bill;
  const where = bill?.free ? "as in S3" : `on ${bill?.provider}`;
  return h("div", { class: "tiles" },
    tile("Waiting", plus(total(queues, "waiting"), least(queues, "waiting")), { zero: !total(queues, "waiting"), extra: depths.length ? sparkline(depths, "tasks that had not ended, over the last hour") : null, sub: `${plus(total(queues, "scheduled"), least(queues, "scheduled"))} scheduled` }),
    tile("Running", plus(total(queues, "in_flight"), least(queues, "in_flight")), { zero: !total(queues, "in_flight"), sub: `${plus(total(queues, "resting"), least(queues, "resting"))} resting` }),
    tile("Failed", plus(total(queues, "failed"), least(queues, "failed")), { bad: total(queues, "failed") > 0, zero: !total(queues, "failed"), sub: total(queues, "cancelled") ? `${plus(total(queues, "cancelled"), least(queues, "cancelled"))} cancelled` : "not retried" }),
    tile("Ended, last hour", plus(done, queues.some((each) => each.rate_at_least)), { zero: !done, extra: hour.length ? sparkline(hour, `${count(done)} tasks ended in the last hour`) : null }),
    tile("Workers alive", alive ? short(alive.length) : "–", { zero: !alive?.length, bad: queues.some((each) => each.no_worker), sub: queues.some((each) => each.no_worker) ? `none in ${tally(queues.filter((each) => each.no_worker).length, "queue")}` : alive ? `${alive.reduce((all, each) => all + (each.threads ?? 1), 0)} threads` : "not recorded" }),
    tile("Locks held", short(held.length), { zero: !held.length, sub: held.some((each) => each.state === "overdue") ? "one is overdue" : "" }),
    tile("Requests so far", plus(bill?.work.requests, bill?.at_least), { sub: `${dollars(bill?.work.dollars)} ${where}` }),
    tile("Per month", dollars(bill?.month_dollars), { zero: !bill?.month_dollars, sub: `at this rate, ${where}` }));
}

function catalogPanel(found) {
  const catalog = found.catalog;
  if (found.trouble.catalog) return panel("Catalog", "", h("div", { class: "pad" }, problem(found.trouble.catalog)));
  if (!catalog?.version) return panel("Catalog", "", empty("No table was ever published here. ", h("code", {}, "limpet serve"), " serves a catalog."));
  return panel("Catalog", [`version ${count(catalog.version)}`], table("catalog", [["Tables", "num"], ["Views", "num phone-off"], ["Namespaces", "num phone-off"], ["Last commit", "nowrap"], ["What", "wide"]],
    [[link("#/catalog", count(catalog.tables)), figure(catalog.views), figure(catalog.namespaces), ago(catalog.at), [catalog.last.join(", ") || "a new leader", catalog.actor ? h("span", { class: "faint" }, ` by ${catalog.actor}`) : null]]]));
}

/** Locks that are held; ages are as of the reading, since a holder goes on renewing. */
export function locksTable(locks, { brief = false } = {}) {
  const columns = [["Lock", "name"], ["State", ""], ["Holder", "wide"], ["Heartbeat", "num nowrap"], ["Token", "num phone-off"], ["TTL", "num phone-off"]];
  const rows = locks.map((each) => [each.name, badge(each.state, { held: "good", overdue: "bad" }[each.state]), each.holder || h("span", { class: "zero" }, "–"), h("time", { datetime: each.heartbeat_at, title: both(each.heartbeat_at) }, `${span(each.age_s)} old`), count(each.token), `${each.ttl_s} s`]);
  const without = (cells) => (brief ? cells.slice(0, 4) : cells);
  return table("locks", without(columns), rows.map(without));
}

function locksPanel(found) {
  const held = found.locks.locks.filter((each) => each.state !== "free");
  return panel("Locks held", [found.locks.more ? "the first 200; " : "", "read ", ago(found.read_at.locks)], found.trouble.locks ? problem(found.trouble.locks) : null, held.length ? locksTable(held, { brief: true }) : empty("No lock is held."));
}

function workersPanel(found) {
  const workers = found.workers?.workers;
  if (!workers?.length) return null;
  return panel("Workers", `${count(workers.filter((each) => !each.gone).length)} alive`, table("workers", [["Host", "name"], ["Process", "num phone-off"], ["Queues", "wide"], ["Threads", "num phone-off"], ["Version", "phone-off"], ["Since", "num nowrap"], ["State", ""]],
    workers.map((each) => [each.host, each.pid, each.queues.join(", "), figure(each.threads), each.version, ago(each.since), each.gone ? badge("gone", "bad") : badge("alive", "good")])));
}

export function overviewPage() {
  const element = h("div", {}, empty("Reading the fleet…"));
  return {
    element,
    update(found) {
      refill(element,
        h("div", { class: "head" }, h("h1", {}, "Overview"), h("span", { class: "muted" }, found.alerts.length ? "" : "Nothing to warn of")),
        alerts(found), tiles(found), queuesPanel(found), workersPanel(found),
        h("div", { class: "grid" },
          panel("Indexes", found.indexes_more ? `${count(found.indexes_more)} more are not shown` : "", found.trouble.indexes ? problem(found.trouble.indexes) : null, found.indexes.length ? indexTable(found, { brief: true }) : empty("There is no index here. ", h("code", {}, "limpet index create"), " makes one.")),
          h("div", {}, catalogPanel(found), locksPanel(found))));
    },
  };
}
