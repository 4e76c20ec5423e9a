// A queue: who works on what, what rests or is suspended, what comes later, what failed and why; and what can be done about it.

import { get, post } from "./api.js";
import { ago, badge, confirm, count, empty, figure, h, link, moment, panel, path, problem, rate, refill, short, span, table, tile, toast } from "./dom.js";
import { endedList, searchBar } from "./lists.js";
import { depth, depthSource, finished, oldest, queuesPanel, stateBadge } from "./overview.js";
import { jsonOf, showTask, stateOf } from "./task.js";

const MEMBERS_PAGE = 100;

export function queuesPage() {
  const element = h("div", {}, empty("Reading the queues…"));
  return { element, update: (found) => refill(element, h("div", { class: "head" }, h("h1", {}, "Queues")), queuesPanel(found)) };
}

const tasks = (n) => `${count(n)} ${n === 1 ? "task" : "tasks"}`;
function progress(entry) {
  if (entry.tasks < 2) return h("span", { class: "zero" }, "–");
  return [h("span", { class: "bar" }, h("i", { "width%": (entry.done / entry.tasks) * 100 })), h("span", { class: "nowrap" }, `${count(entry.done)} of ${count(entry.tasks)}`)];
}

// ---- the page ----

export function queuePage(state, queue, task) {
  const top = h("div", {}, empty("Reading the queue…"));
  const failures = h("div", {});
  const lists = h("div", {});
  const search = searchBar(searched, entered);
  const ended = endedList(queue, search, opens);
  const element = h("div", {}, top, search.element, failures, ended.element, lists);
  const writes = Boolean(state.config?.writes);
  const members = new Map(); // by error: the tasks of a group of which more were asked for
  const payloads = { of: {}, asked: new Set() };
  let details = null;
  let wrong = "";
  let seen = -1;
  let shown = null; // the task in the dialog, if one is open

  async function reload() {
    try {
      [details, wrong] = [await get("queue", queue), ""];
    } catch (error) {
      wrong = error.message;
    }
    if (element.isConnected) draw();
    ended.changed();
    await Promise.all([follow(), readPayloads(), ...[...members].map(([error, { most }]) => readMembers(error, most))]);
  }

  // ---- search ----

  function searched() {
    draw();
    ended.draw();
    readPayloads();
  }

  /** Enter: the task that is left, or the one with this id, listed or not. */
  function entered(text) {
    const ids = [...element.querySelectorAll("button.open")].map((each) => each.textContent);
    if (ids.includes(text) || !ids.length) show(text);
    else if (new Set(ids).size === 1) show(ids[0]);
  }

  /** Payloads of what waits are read when a search begins, and again when tasks are listed that were not there. */
  async function readPayloads() {
    const ids = [...(details?.pending ?? []), ...(details?.scheduled ?? [])].map((each) => each.id);
    if (!search.text() || ids.every((id) => payloads.asked.has(id))) return;
    payloads.asked = new Set(ids);
    try {
      payloads.of = await get("queue", queue, "payloads");
      draw();
    } catch (error) {
      payloads.asked = new Set();
      search.say(`payloads cannot be searched: ${error.message}`);
    }
  }

  const fits = (each) => search.fits(each.id, each.error, each.reason, each.worker, each.state, each.payload ?? payloads.of[each.id]);
  const excerpt = (each) => search.excerpt(each.payload ?? payloads.of[each.id], each.id, each.error, each.reason, each.worker, each.state);

  function countFits() {
    if (!search.text()) return search.say();
    const listed = [...details.pending, ...details.scheduled, ...details.groups.flatMap(membersOf), ...ended.listed()];
    const found = listed.filter(fits).length;
    const look = found ? null : h("button", { type: "button", class: "small", "data-key": "look up", onclick: () => show(search.text()) }, "Look for a task with this id");
    return search.say(`${count(found)} of ${tasks(listed.length)} that are listed`, look);
  }

  // ---- failures ----

  const membersOf = (each) => members.get(each.error)?.tasks ?? each.tasks;

  async function readMembers(error, most) {
    if (!details.groups.some((each) => each.error === error)) return members.delete(error);
    try {
      members.set(error, { most, ...(await post(["queue", queue, "failures"], { group: error, most })) });
    } catch (failure) {
      toast(failure.message, "bad");
    }
    return element.isConnected && draw();
  }

  /** Under the tasks of a group: how many there are, and a button for more of them. */
  function rest(each) {
    const known = members.get(each.error);
    const shown = membersOf(each).length;
    if (!(known ? known.more : each.more)) return null;
    const all = `${count(each.count)}${details.failed_more ? " or more" : ""}`;
    if (known && known.most >= known.limit) return h("p", { class: "empty" }, `the first ${count(shown)}: `, h("code", {}, `limpet queue ls ${queue} --failed -n 100000`), " lists all");
    const most = Math.min(known?.limit ?? MEMBERS_PAGE, (known?.most ?? 0) + MEMBERS_PAGE);
    return h("p", { class: "empty" }, `the first ${count(shown)} of ${all} `, h("button", { type: "button", class: "small", "data-key": `more ${each.error}`, onclick: () => readMembers(each.error, most) }, "Show more"));
  }

  /** What the list says of the task that is open. It is read again when that changes: each recorded step costs a request. */
  function listed(id) {
    const entry = details?.pending.find((each) => each.id === id || id.startsWith(`${each.id}.`));
    return entry ? [entry.state, entry.reason, entry.suspended_at, entry.taken_at, entry.done, entry.attempt, entry.token].join() : "";
  }

  async function follow() {
    if (!shown?.dialog.isConnected || !details) return;
    const before = shown.listed;
    shown.listed = listed(shown.id);
    if (before !== undefined && before !== shown.listed) await shown.read();
  }

  async function show(id) {
    shown = { ...(await showTask(queue, id, writes, reload)), id, listed: details ? listed(id) : undefined };
  }

  const doing = (verb, body, said) => async () => {
    const done = await post(["queue", queue, verb], body, `${verb} ${queue}`);
    toast(typeof said === "function" ? said(done) : said);
    await reload();
  };

  function push() {
    const payload = h("textarea", { required: true, spellcheck: "false" });
    payload.value = "{}";
    const id = h("input", { autocomplete: "off", spellcheck: "false" });
    const fields = [h("label", { class: "field" }, h("span", {}, "Payload, as JSON"), payload), h("label", { class: "field" }, h("span", {}, "Id; without one Limpet makes it"), id)];
    confirm(`Push a task to ${queue}?`, "Workers of this queue will run it.", "Push", async () => {
      await doing("push", { payload: jsonOf(payload), ...(id.value.trim() ? { id: id.value.trim() } : {}) }, (done) => (done.created ? `Pushed: ${done.id}` : `${done.id} was pushed before; nothing was changed`))();
    }, { fields });
  }

  function buttons(summary) {
    if (!writes) return badge("read-only");
    const paused = summary?.paused;
    return [
      h("button", { type: "button", "data-key": "push", onclick: push }, "Push a task"),
      paused
        ? h("button", { type: "button", "data-key": "pause", class: "primary", onclick: () => confirm(`Resume ${queue}?`, "Workers claim its tasks again, within a few seconds.", "Resume", doing("resume", {}, `${queue} is resumed`)) }, "Resume")
        : h("button", { type: "button", "data-key": "pause", onclick: () => confirm(`Pause ${queue}?`, "Workers claim no more of its tasks until it is resumed. What runs goes on, and tasks can still be pushed.", "Pause", doing("pause", {}, `${queue} is paused`)) }, "Pause"),
      summary?.failed ? h("button", { type: "button", "data-key": "retry all", onclick: () => confirm("Retry all that failed?", `All failed tasks of ${queue} (${count(summary.failed)}${summary.at_least.includes("failed") ? " or more" : ""}) are pushed again, with fresh attempts.`, "Retry all", doing("retry", { all: true }, (done) => `${tasks(done.retried.length)} of ${queue} wait again`)) }, "Retry all failed") : null,
    ];
  }

  function opens(id) {
    return h("button", { type: "button", class: "open mono", "data-key": `task ${id}`, onclick: () => show(id) }, id);
  }

  const named = (each) => [opens(each.id), excerpt(each)];

  function group(each) {
    const retry = writes ? h("button", { type: "button", class: "small", "data-key": `group ${each.error}`, onclick: (event) => { event.preventDefault(); confirm("Retry this group?", `The failed tasks of ${queue} with the error “${each.error || "(none)"}” (${count(each.count)}${each.more || details.failed_more ? " or more" : ""}) are pushed again, with fresh attempts.`, "Retry the group", doing("retry", { group: each.error }, (done) => `${tasks(done.retried.length)} of ${queue} wait again`)); } }, "Retry") : null;
    const own = membersOf(each).filter(fits);
    if (!own.length && !search.fits(each.error)) return null;
    const shown = own.length ? own : membersOf(each);
    return h("details", { class: "group", "data-key": `${search.text() ? "search" : "failure"} ${each.error}`, open: Boolean(search.text() && own.length) },
      h("summary", { "data-key": `summary ${each.error}` }, badge(count(each.count), "bad"), h("span", { class: "error mono" }, each.error || "(no error text)"), h("span", { class: "faint nowrap phone-off" }, "last ", ago(each.last_at)), retry),
      table(`failure ${each.error}`, [["Task", "id"], ["Error", "wide"], ["Payload", "wide phone-off"], ["Worker", "phone-off"], ["Ended", "num nowrap"]], shown.map((task) => [named(task), h("span", { class: "mono" }, task.error), h("span", { class: "mono one-line" }, task.payload.slice(0, 80)), task.worker, ago(task.finished_at)])),
      search.text() ? null : rest(each));
  }

  function entries() {
    const rows = details.pending.filter(fits);
    const scheduled = details.scheduled.filter(fits);
    const nothing = (text) => empty(search.text() ? "Nothing here fits the search." : text);
    const work = rows.filter((each) => each.state === "running" || each.overdue);
    const rests = rows.filter((each) => each.state === "resting");
    const suspended = rows.filter((each) => each.state === "suspended");
    const waits = rows.filter((each) => !work.includes(each) && !rests.includes(each) && !suspended.includes(each));
    const more = details.pending_more ? "of the first 100 entries" : "";
    return [
      panel("At work", more, work.length ? table("work", [["Task", "id"], ["Worker", "wide"], ["Progress", ""], ["Attempt", "num phone-off"], ["Since", "num nowrap"], ["State", "phone-off"]], work.map((each) => [named(each), [each.worker ?? "–", each.overdue ? h("span", { class: "phone-only" }, " ", stateOf(each)) : null], progress(each), figure(each.attempt), each.taken_at ? ago(each.taken_at) : "–", stateOf(each)])) : nothing("No worker holds a task.")),
      rests.length ? panel("Resting before the next attempt", more, table("resting", [["Task", "id"], ["Next try", "num nowrap"], ["Attempt", "num phone-off"], ["Progress", "phone-off"], ["Last error", "wide"]], rests.map((each) => [named(each), `in ${span(each.rests_s)}`, figure(each.attempt), progress(each), h("span", { class: "mono" }, each.error || "–")]))) : null,
      suspended.length ? panel("Suspended, without a worker", more, table("suspended", [["Task", "id"], ["Reason", "wide"], ["Since", "num nowrap"], ["Until", "nowrap phone-off"], ["Attempt", "num phone-off"]], suspended.map((each) => [named(each), each.reason, ago(each.suspended_at), each.due_at ? moment(each.due_at) : "–", figure(each.attempt)]))) : null,
      panel("Waiting", more, waits.length ? table("waiting", [["Task", "id"], ["Pushed", "num nowrap"], ["Tasks", "num"], ["Attempt", "num phone-off"], ["State", ""]], waits.slice(0, 25).map((each) => [named(each), `${span(each.age_s)} ago`, count(each.tasks), figure(each.attempt), stateOf(each)])) : nothing("Nothing waits."), waits.length > 25 ? h("p", { class: "empty" }, `and ${count(waits.length - 25)} more${details.pending_more ? ", at least" : ""}`) : null),
      scheduled.length ? panel("Scheduled", details.scheduled_more ? "the first 100" : "", table("scheduled", [["Task", "id"], ["Due", "num nowrap"], ["At", "nowrap phone-off"]], scheduled.slice(0, 25).map((each) => [named(each), each.due_in_s > 0 ? `in ${span(each.due_in_s)}` : "now", moment(each.due_at)]))) : null,
    ];
  }

  function draw() {
    const found = state.overview;
    const summary = found?.queues.find((each) => each.queue === queue);
    const bound = (name) => (summary?.at_least.includes(name) ? "+" : "");
    search.element.hidden = ended.element.hidden = !details;
    refill(top,
      h("div", { class: "head" }, h("div", { class: "crumb" }, link("#/queues", "Queues")), h("h1", {}, queue), summary ? stateBadge(summary) : null, h("span", { class: "grow" }), wrong && !details ? null : buttons(summary)),
      wrong ? problem(wrong) : null,
      summary?.trouble ? problem(summary.trouble) : null,
      summary ? h("div", { class: "tiles" },
        tile("Waiting", short(summary.waiting) + bound("waiting"), { zero: !summary.waiting, sub: `${short(summary.scheduled)} scheduled` }),
        tile("Running", short(summary.in_flight) + bound("in_flight"), { zero: !summary.in_flight, sub: `${short(summary.done)} done in batches` }),
        tile("Resting", short(summary.resting) + bound("resting"), { zero: !summary.resting, bad: summary.waits_for_code > 0, sub: summary.waits_for_code ? `${short(summary.waits_for_code)}${bound("waits_for_code")} wait for code that fits` : summary.suspended ? `${short(summary.suspended)}${bound("suspended")} suspended` : "until the next try" }),
        tile("Failed", short(summary.failed) + bound("failed"), { bad: summary.failed > 0, zero: !summary.failed, sub: summary.cancelled ? `${short(summary.cancelled)}${bound("cancelled")} cancelled` : "not retried" }),
        tile("Completed", short(summary.completed) + bound("completed"), { zero: !summary.completed, sub: "receipts kept" }),
        tile("Oldest", oldest(summary, found.read_at.queues), { zero: summary.oldest_s === null, sub: "not ended" }),
        tile("Per minute", rate(summary.per_minute) + (summary.rate_at_least ? "+" : ""), { zero: !summary.per_minute, extra: finished(summary), sub: summary.rate_source ? `by ${summary.rate_source}` : "" }),
        tile("Depth, last hour", short(summary.pending - (summary.done ?? 0)) + bound("pending"), { zero: !summary.pending, extra: depth(summary), sub: summary.depth_source ? depthSource(summary) : "" })) : null);
    if (!details) return;
    const groups = details.groups.map(group).filter(Boolean);
    refill(failures, panel("Failures", details.failed_more ? "by error, of the first 200" : "by error", details.unreadable ? problem(`${count(details.unreadable)} unreadable ${details.unreadable === 1 ? "receipt was" : "receipts were"} passed over; the first: ${details.unreadable_error}`) : null, groups.length ? groups : empty(details.groups.length ? "No failure fits the search." : "Nothing has failed."), details.failed_more ? h("p", { class: "empty" }, "There are more: ", h("code", {}, `limpet queue ls ${queue} --failed -n 1000`), " lists more of them") : null));
    refill(lists, entries());
    countFits();
  }

  reload();
  if (task) queueMicrotask(() => show(task));
  return {
    element,
    reload,
    search: search.focus,
    update(found) {
      if (seen !== -1 && found.versions.queues !== seen) reload();
      else if (details || wrong) draw();
      seen = found.versions.queues;
    },
  };
}
