// A queue: who works on what, what rests or is suspended, what comes later, what failed and why; and what can be done about it.

import { get, post } from "./api.js";
import { ago, badge, confirm, count, empty, facts, figure, h, link, moment, panel, path, problem, rate, reader, refill, short, span, table, tile, toast } from "./dom.js";
import { depth, depthSource, finished, oldest, queuesPanel, stateBadge } from "./overview.js";

export function queuesPage() {
  const element = h("div", {}, empty("Reading the queues…"));
  return { element, update: (found) => refill(element, h("div", { class: "head" }, h("h1", {}, "Queues")), queuesPanel(found)) };
}

const tasks = (n) => `${count(n)} ${n === 1 ? "task" : "tasks"}`;
const STATES = { running: "good", overdue: "bad", resting: "warn", suspended: "warn", completed: "good", failed: "bad", cancelled: "bad" };

/** The state of a task. One whose worker has not renewed its claim waits for another worker. */
function stateOf(found) {
  return found.overdue ? badge("overdue", STATES.overdue) : badge(found.state, STATES[found.state]);
}

function progress(entry) {
  if (entry.tasks < 2) return h("span", { class: "zero" }, "–");
  return [h("span", { class: "bar" }, h("i", { "width%": (entry.done / entry.tasks) * 100 })), h("span", { class: "nowrap" }, `${count(entry.done)} of ${count(entry.tasks)}`)];
}

// ---- one task ----

/** When a step began and ended. A wait began before its record, but a sleep begins with it. */
function ran(step) {
  const at = Date.parse(step.at);
  if (step.kind === "sleep") return [at, Math.min(Date.now(), at + step.waited_s * 1000)];
  return [at - Math.max(step.took_s, step.waited_s ?? 0) * 1000, at];
}

/** How long a step took, or was waited for. */
function took(step) {
  const seconds = Math.max(step.took_s, step.waited_s ?? 0);
  return seconds >= 1 ? span(seconds) : seconds < 0.001 ? "<1 ms" : `${Math.round(seconds * 1000)} ms`;
}

/** The recorded steps of a durable task, each with a bar that says when it ran, and what the task waits for. */
function timeline(found) {
  if (!found.steps.length && !found.reason) return null;
  const runs = found.steps.filter((each) => each.at).map(ran);
  const since = found.suspended_at ? Date.parse(found.suspended_at) : Date.now();
  const first = Math.min(since, ...runs.map(([began]) => began));
  const last = Math.max(found.reason ? Date.now() : first + 1, ...runs.map(([, ended]) => ended));
  const bar = (began, ended, kind) => h("span", { class: "track phone-off" }, h("i", { class: kind, "left%": ((began - first) / (last - first)) * 98, "width%": Math.max(2, ((ended - began) / (last - first)) * 98) }));
  const line = (each) => {
    if (!each.at) return h("p", { class: "problem" }, `step ${each.number} cannot be read: ${each.error}`);
    return h("details", { class: "group", "data-key": `step ${each.number}` },
      h("summary", {}, h("span", { class: "number" }, each.number), badge(each.kind), h("span", { class: "error mono" }, each.name), bar(...ran(each), each.waited_s === undefined ? "" : "waited"), h("span", { class: "faint nowrap" }, took(each))),
      h("div", { class: "pad" }, h("p", { class: "muted" }, `step ${each.number}, ${moment(each.at)}, in ${each.worker}`), h("pre", {}, each.value)));
  };
  const waits = found.reason ? h("div", { class: "waiting" }, badge("suspended", "warn"), h("span", { class: "error" }, found.reason), bar(since, last, "open"), h("span", { class: "faint nowrap", title: moment(found.suspended_at) }, span((last - since) / 1000))) : null;
  return h("div", { class: "steps" }, h("h3", {}, "Steps"), found.steps_before ? h("p", { class: "muted" }, `the last ${count(found.steps.length)}; ${count(found.steps_before)} before them are not shown`) : null, h("div", { class: "panel" }, found.steps.map(line), waits));
}

async function showTask(queue, id, writes, changed) {
  const body = h("div", { class: "content" }, empty("Reading the task…"));
  const foot = h("footer", {});
  const dialog = reader(id, body, foot);
  history.replaceState(null, "", path("queue", queue, id)); // a link to this task
  dialog.addEventListener("close", () => history.replaceState(null, "", path("queue", queue)));
  const read = async () => {
    try {
      drawTask(await get("queue", queue, "task", id), { queue, writes, changed, dialog, body, foot });
    } catch (error) {
      body.replaceChildren(problem(error.message));
      foot.replaceChildren();
    }
  };
  await read();
  return { dialog, read };
}

function drawTask(found, { queue, writes, changed, dialog, body, foot }) {
  const first = !body.querySelector("dl");
  const act = (title, what, button, verb, danger) => h("button", { type: "button", "data-key": verb, class: danger ? "danger" : "primary", onclick: () => { dialog.close(); confirm(title, what, button, async () => { await post(["queue", queue, verb], { id: found.id }, `${verb} ${found.id} of ${queue}`); toast(`${verb === "retry" ? "Retried" : "Cancelled"}: ${found.id}`); changed(); }, { danger }); } }, button);
  const ended = ["completed", "failed", "cancelled"].includes(found.state);
  const buttons = [];
  if (writes && found.state === "failed") buttons.push(act("Retry this task?", `${found.id} is pushed to ${queue} again, with fresh attempts and a new id.${found.steps.length ? ` Its recorded steps are kept; \`limpet queue retry ${queue} ${found.id} --from-scratch\` forgets them.` : ""}`, "Retry", "retry", false));
  if (writes && !ended && !found.batch) buttons.push(act("Cancel it?", `${found.id} is taken out of ${queue}. A handler that runs already is not stopped; if it succeeds, that counts.`, "Cancel the task", "cancel", true));
  const attempts = found.errors.map((each) => h("details", { class: "group", "data-key": `attempt ${each.attempt}` }, h("summary", {}, badge(`attempt ${each.attempt}`), h("span", { class: "error mono" }, each.error), h("span", { class: "faint nowrap phone-off" }, ago(each.at))), h("div", { class: "pad" }, h("p", { class: "muted" }, `${moment(each.at)}, in ${each.worker}`), each.traceback ? h("pre", {}, each.traceback) : null)));
  if (attempts.length && first) attempts.at(-1).open = true;
  refill(body,
    facts(["State", stateOf(found)], ["Reason", found.reason], ["Asked for", found.asked_for], ["Worker", found.worker], ["Attempt", found.attempt ?? found.attempts], ["Held since", found.taken_at ? ago(found.taken_at) : null], ["Last heartbeat", found.heartbeat_s === undefined || found.reason ? null : `${span(found.heartbeat_s)} ago`], ["Next try", found.rests_s && !found.reason ? `in ${span(found.rests_s)}` : null], ["Tasks", found.tasks], ["Done", found.done], ["Failed", found.failed.length ? found.failed.join(", ") : null], ["Pushed", found.pushed_at ? moment(found.pushed_at) : null], [found.reason ? "Waits until" : "Due", found.due_at ? moment(found.due_at) : null], ["Ended", found.finished_at ? moment(found.finished_at) : null], ["Error", attempts.length ? null : found.error]),
    timeline(found),
    attempts.length ? h("div", {}, h("h3", {}, "Attempts"), h("div", { class: "panel" }, attempts)) : null,
    found.traceback && !attempts.length ? h("div", {}, h("h3", {}, "Traceback"), h("pre", {}, found.traceback)) : null,
    found.payload === undefined ? null : h("div", {}, h("h3", {}, "Payload"), h("pre", {}, found.payload)),
    found.result === undefined ? null : h("div", {}, h("h3", {}, "Result"), h("pre", {}, found.result)));
  refill(foot, buttons);
}

// ---- the page ----

export function queuePage(state, queue, task) {
  const element = h("div", {}, empty("Reading the queue…"));
  const writes = Boolean(state.config?.writes);
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
    await follow();
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
      let value;
      try {
        value = JSON.parse(payload.value);
      } catch (error) {
        throw new Error(`this is not JSON: ${error.message}`);
      }
      await doing("push", { payload: value, ...(id.value.trim() ? { id: id.value.trim() } : {}) }, (done) => (done.created ? `Pushed: ${done.id}` : `${done.id} was pushed before; nothing was changed`))();
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

  const opens = (id) => h("button", { type: "button", class: "open mono", "data-key": `task ${id}`, onclick: () => show(id) }, id);

  function group(each) {
    const retry = writes ? h("button", { type: "button", class: "small", "data-key": `group ${each.error}`, onclick: (event) => { event.preventDefault(); confirm("Retry this group?", `The failed tasks of ${queue} with the error “${each.error || "(none)"}” (${count(each.count)}${each.more || details.failed_more ? " or more" : ""}) are pushed again, with fresh attempts.`, "Retry the group", doing("retry", { group: each.error }, (done) => `${tasks(done.retried.length)} of ${queue} wait again`)); } }, "Retry") : null;
    return h("details", { class: "group", "data-key": `failure ${each.error}` },
      h("summary", {}, badge(count(each.count), "bad"), h("span", { class: "error mono" }, each.error || "(no error text)"), h("span", { class: "faint nowrap phone-off" }, "last ", ago(each.last_at)), retry),
      table(`failure ${each.error}`, [["Task", "id"], ["Error", "wide"], ["Worker", "phone-off"], ["Ended", "num nowrap"]], each.tasks.map((task) => [opens(task.id), h("span", { class: "mono" }, task.error), task.worker, ago(task.finished_at)])),
      each.more ? h("p", { class: "empty" }, `the first 20 of ${count(each.count)}`) : null);
  }

  function entries() {
    const rows = details.pending;
    const work = rows.filter((each) => each.state === "running" || each.overdue);
    const rests = rows.filter((each) => each.state === "resting");
    const suspended = rows.filter((each) => each.state === "suspended");
    const waits = rows.filter((each) => !work.includes(each) && !rests.includes(each) && !suspended.includes(each));
    const more = details.pending_more ? "of the first 100 entries" : "";
    return [
      panel("At work", more, work.length ? table("work", [["Task", "id"], ["Worker", "wide"], ["Progress", ""], ["Attempt", "num phone-off"], ["Since", "num nowrap"], ["State", "phone-off"]], work.map((each) => [opens(each.id), [each.worker ?? "–", each.overdue ? h("span", { class: "phone-only" }, " ", stateOf(each)) : null], progress(each), figure(each.attempt), each.taken_at ? ago(each.taken_at) : "–", stateOf(each)])) : empty("No worker holds a task.")),
      rests.length ? panel("Resting before the next attempt", more, table("resting", [["Task", "id"], ["Next try", "num nowrap"], ["Attempt", "num phone-off"], ["Progress", "phone-off"], ["Last error", "wide"]], rests.map((each) => [opens(each.id), `in ${span(each.rests_s)}`, figure(each.attempt), progress(each), h("span", { class: "mono" }, each.error || "–")]))) : null,
      suspended.length ? panel("Suspended, without a worker", more, table("suspended", [["Task", "id"], ["Reason", "wide"], ["Since", "num nowrap"], ["Until", "nowrap phone-off"], ["Attempt", "num phone-off"]], suspended.map((each) => [opens(each.id), each.reason, ago(each.suspended_at), each.due_at ? moment(each.due_at) : "–", figure(each.attempt)]))) : null,
      panel("Waiting", more, waits.length ? table("waiting", [["Task", "id"], ["Pushed", "num nowrap"], ["Tasks", "num"], ["Attempt", "num phone-off"], ["State", ""]], waits.slice(0, 25).map((each) => [opens(each.id), `${span(each.age_s)} ago`, count(each.tasks), figure(each.attempt), stateOf(each)])) : empty("Nothing waits."), waits.length > 25 ? h("p", { class: "empty" }, `and ${count(waits.length - 25)} more${details.pending_more ? ", at least" : ""}`) : null),
      details.scheduled.length ? panel("Scheduled", details.scheduled_more ? "the first 100" : "", table("scheduled", [["Task", "id"], ["Due", "num nowrap"], ["At", "nowrap phone-off"]], details.scheduled.slice(0, 25).map((each) => [opens(each.id), each.due_in_s > 0 ? `in ${span(each.due_in_s)}` : "now", moment(each.due_at)]))) : null,
    ];
  }

  function draw() {
    const found = state.overview;
    const summary = found?.queues.find((each) => each.queue === queue);
    const bound = (name) => (summary?.at_least.includes(name) ? "+" : "");
    refill(element,
      h("div", { class: "head" }, h("div", { class: "crumb" }, link("#/queues", "Queues")), h("h1", {}, queue), summary ? stateBadge(summary) : null, h("span", { class: "grow" }), wrong && !details ? null : buttons(summary)),
      wrong ? problem(wrong) : null,
      summary?.trouble ? problem(summary.trouble) : null,
      summary ? h("div", { class: "tiles" },
        tile("Waiting", short(summary.waiting) + bound("waiting"), { zero: !summary.waiting, sub: `${short(summary.scheduled)} scheduled` }),
        tile("Running", short(summary.in_flight) + bound("in_flight"), { zero: !summary.in_flight, sub: `${short(summary.done)} done in batches` }),
        tile("Resting", short(summary.resting) + bound("resting"), { zero: !summary.resting, sub: summary.suspended ? `${short(summary.suspended)}${bound("suspended")} suspended` : "until the next try" }),
        tile("Failed", short(summary.failed) + bound("failed"), { bad: summary.failed > 0, zero: !summary.failed, sub: summary.cancelled ? `${short(summary.cancelled)}${bound("cancelled")} cancelled` : "not retried" }),
        tile("Completed", short(summary.completed) + bound("completed"), { zero: !summary.completed, sub: "receipts kept" }),
        tile("Oldest", oldest(summary, found.read_at.queues), { zero: summary.oldest_s === null, sub: "not ended" }),
        tile("Per minute", rate(summary.per_minute) + (summary.rate_at_least ? "+" : ""), { zero: !summary.per_minute, extra: finished(summary), sub: summary.rate_source ? `by ${summary.rate_source}` : "" }),
        tile("Depth, last hour", short(summary.pending - (summary.done ?? 0)) + bound("pending"), { zero: !summary.pending, extra: depth(summary), sub: summary.depth_source ? depthSource(summary) : "" })) : null,
      details ? [
        panel("Failures", details.failed_more ? "by error, of the first 200" : "by error", details.unreadable ? problem(`${count(details.unreadable)} unreadable ${details.unreadable === 1 ? "receipt was" : "receipts were"} passed over; the first: ${details.unreadable_error}`) : null, details.groups.length ? details.groups.map(group) : empty("Nothing has failed."), details.failed_more ? h("p", { class: "empty" }, "There are more: ", h("code", {}, `limpet queue ls ${queue} --failed -n 1000`), " lists more of them") : null),
        entries(),
      ] : null);
  }

  reload();
  if (task) queueMicrotask(() => show(task));
  return {
    element,
    reload,
    update(found) {
      if (seen !== -1 && found.versions.queues !== seen) reload();
      else if (details || wrong) draw();
      seen = found.versions.queues;
    },
  };
}
