// One task, waiting or ended: its facts, the timeline of its steps, its signals, parent and children, its attempts, and what can be done about it.

import { get, post } from "./api.js";
import { ago, badge, both, confirm, count, empty, facts, h, link, moment, path, problem, reader, refill, span, table, toast, tookText } from "./dom.js";

const STATES = { running: "good", overdue: "bad", resting: "warn", suspended: "warn", completed: "good", failed: "bad", cancelled: "bad" };

/** The state of a task. One whose worker has not renewed its claim waits for another worker. */
export function stateOf(found) {
  return found.overdue ? badge("overdue", STATES.overdue) : badge(found.state, STATES[found.state]);
}

/** When a step began and ended. A wait began before its record, but a sleep begins with it. */
function ran(step) {
  const at = Date.parse(step.at);
  if (step.kind === "sleep") return [at, Math.min(Date.now(), at + step.waited_s * 1000)];
  return [at - Math.max(step.took_s, step.waited_s ?? 0) * 1000, at];
}

/** How long a step took, or was waited for. */
const took = (step) => tookText(Math.max(step.took_s, step.waited_s ?? 0));

/** The recorded steps of a durable task, each with a bar that says when it ran, and what the task waits for. */
function timeline(found) {
  const gone = found.steps_lost ? "Its steps were not kept: the worker that wrote them died, or had another version." : found.steps_left_out ? `${count(found.steps_left_out)} steps are left out: the history of a task is bounded.` : "";
  if (!found.steps.length && !found.reason) return gone ? h("div", {}, h("h3", {}, "Steps"), h("p", { class: "muted" }, gone)) : null;
  const runs = found.steps.filter((each) => each.at).map(ran);
  const since = found.suspended_at ? Date.parse(found.suspended_at) : Date.now();
  const first = Math.min(since, ...runs.map(([began]) => began));
  const last = Math.max(found.reason ? Date.now() : first + 1, ...runs.map(([, ended]) => ended));
  const bar = (began, ended, kind) => h("span", { class: "track phone-off" }, h("i", { class: kind, "left%": ((began - first) / (last - first)) * 98, "width%": Math.max(2, ((ended - began) / (last - first)) * 98) }));
  const line = (each) => {
    if (!each.at) return h("p", { class: "problem" }, `step ${each.number} cannot be read: ${each.error}`);
    return h("details", { class: "group", "data-key": `step ${each.number}` },
      h("summary", {}, h("span", { class: "number" }, each.number), badge(each.kind), h("span", { class: "error mono" }, each.name), bar(...ran(each), each.waited_s === undefined ? "" : "waited"), h("span", { class: "faint nowrap" }, took(each))),
      h("div", { class: "pad" }, h("p", { class: "muted" }, `step ${each.number}, `, moment(each.at), `, in ${each.worker}`), h("pre", {}, each.value)));
  };
  const waits = found.reason ? h("div", { class: "waiting" }, badge("suspended", "warn"), h("span", { class: "error" }, found.reason), bar(since, last, "open"), h("span", { class: "faint nowrap", title: both(found.suspended_at) }, span((last - since) / 1000))) : null;
  return h("div", { class: "steps" }, h("h3", {}, "Steps"), found.steps_before ? h("p", { class: "muted" }, `the last ${count(found.steps.length)}; ${count(found.steps_before)} before them are not shown`) : null, h("div", { class: "panel" }, found.steps.map(line), waits), gone ? h("p", { class: "muted" }, gone) : null);
}

const task = (each) => link(path("queue", each.queue, each.id), each.id, { class: "link mono" });

/** The signals that it got, and who sent each. */
function signals(found) {
  if (!found.signals.length) return null;
  const rows = found.signals.map((each) => [each.name, each.by || h("span", { class: "zero" }, "–"), each.at ? moment(each.at) : "–", h("span", { class: "mono" }, each.value)]);
  return h("div", {}, h("h3", {}, "Signals"), h("div", { class: "panel" }, table("signals", [["Signal", "name"], ["Sent by", "wide"], ["At", "nowrap phone-off"], ["Value", "wide"]], rows)));
}

/** The tasks that its steps have pushed, with their states. */
function children(found) {
  if (!found.children.length) return null;
  const rows = found.children.map((each) => [task(each), each.queue, stateOf(each)]);
  const more = found.pushed - found.children.length;
  return h("div", {}, h("h3", {}, "Children"), h("div", { class: "panel" }, table("children", [["Task", "id"], ["Queue", "wide"], ["State", ""]], rows), more > 0 ? h("p", { class: "empty" }, `and ${count(more)} more`) : null));
}

export async function showTask(queue, id, writes, changed) {
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
  const act = (title, what, button, verb, danger) => h("button", { type: "button", "data-key": verb, class: danger ? "danger" : "primary", onclick: () => { dialog.close(); confirm(title, what, button, async () => { await post(["queue", queue, verb], { id: found.id }, `${verb} ${found.id} of ${queue}`); toast(`${{ retry: "Retried", cancel: "Cancelled", fail: "Failed" }[verb]}: ${found.id}`); changed(); }, { danger }); } }, button);
  const ended = ["completed", "failed", "cancelled"].includes(found.state);
  const buttons = [];
  if (writes && !ended && !found.tasks && (found.signal || found.steps.length)) buttons.push(h("button", { type: "button", "data-key": "signal", class: found.signal ? "primary" : "", onclick: () => { dialog.close(); sendSignal(queue, found, changed); } }, "Send a signal"));
  if (writes && found.state === "failed") buttons.push(act("Retry this task?", `${found.id} is pushed to ${queue} again, with fresh attempts and a new id.${found.steps.length ? ` Its recorded steps are kept; \`limpet queue retry ${queue} ${found.id} --from-scratch\` forgets them.` : ""}`, "Retry", "retry", false));
  if (writes && found.waits_for_code) buttons.push(act("Fail it?", `${found.id} ends as failed, and can be retried with its recorded steps. Without this it goes on by itself when code that fits is deployed.`, "Fail the task", "fail", true));
  if (writes && !ended && !found.batch) buttons.push(act("Cancel it?", `${found.id} is taken out of ${queue}. A handler that runs already is not stopped; if it succeeds, that counts.`, "Cancel the task", "cancel", true));
  const attempts = found.errors.map((each) => h("details", { class: "group", "data-key": `attempt ${each.attempt}` }, h("summary", {}, badge(`attempt ${each.attempt}`), h("span", { class: "error mono" }, each.error), h("span", { class: "faint nowrap phone-off" }, ago(each.at))), h("div", { class: "pad" }, h("p", { class: "muted" }, moment(each.at), `, in ${each.worker}`), each.traceback ? h("pre", {}, each.traceback) : null)));
  const values = ["payload", "result"].filter((name) => found[name] !== undefined).map((name) => h("div", {}, h("h3", {}, name[0].toUpperCase() + name.slice(1)), h("pre", {}, found[name])));
  if (attempts.length && first) attempts.at(-1).open = true;
  refill(body,
    facts(["State", stateOf(found)], ["Reason", found.reason], ["Asked for", found.asked_for], ["Worker", found.worker], ["Pushed by", found.parent ? [task(found.parent), ` of ${found.parent.queue}, step ${found.parent.step}`] : null], ["Attempt", found.attempt ?? found.attempts], ["Held since", found.taken_at ? ago(found.taken_at) : null], ["Last heartbeat", found.heartbeat_s === undefined || found.reason ? null : `${span(found.heartbeat_s)} ago`], ["Next try", found.rests_s && !found.reason ? `in ${span(found.rests_s)}` : null], ["Tasks", found.tasks], ["Done", found.done], ["Failed", found.failed.length ? found.failed.join(", ") : null], ["Pushed", found.pushed_at ? moment(found.pushed_at) : null], [found.reason ? "Waits until" : "Due", found.due_at ? moment(found.due_at) : null], ["Began", found.began_at ? moment(found.began_at) : null], ["Ended", found.finished_at ? moment(found.finished_at) : null], ["Handler took", found.took_s === undefined || found.took_s === null ? null : tookText(found.took_s)], ["Error", attempts.length ? null : found.error]),
    attempts.length ? h("div", {}, h("h3", {}, "Attempts"), h("div", { class: "panel" }, attempts)) : null,
    found.traceback && !attempts.length ? h("div", {}, h("h3", {}, "Traceback"), h("pre", {}, found.traceback)) : null,
    ended ? values : null,
    timeline(found),
    signals(found),
    children(found),
    ended ? null : values);
  refill(foot, buttons);
}

/** A value that was typed as JSON. */
export function jsonOf(field) {
  try {
    return JSON.parse(field.value);
  } catch (error) {
    throw new Error(`this is not JSON: ${error.message}; a text is in double quotes: "yes"`);
  }
}

function sendSignal(queue, found, changed) {
  const name = h("input", { autocomplete: "off", spellcheck: "false", required: true, value: found.signal ?? "" });
  const value = h("textarea", { required: true, spellcheck: "false" });
  value.value = "null";
  const early = h("input", { type: "checkbox" });
  const other = h("label", { class: "check", hidden: true }, early, ` It waits for “${found.signal}”. Keep this signal for a later wait`);
  name.addEventListener("input", () => (other.hidden = !found.signal || name.value.trim() === found.signal));
  const fields = [h("label", { class: "field" }, h("span", {}, "Name"), name), other, h("label", { class: "field" }, h("span", {}, "Value, as JSON: what the task gets"), value)];
  confirm(`Send a signal to ${found.id}?`, found.signal ? `The task waits for “${found.signal}”. The first signal of a name counts.` : "The task gets it when it waits for it. The first signal of a name counts.", "Send", async () => {
    const body = { id: found.id, name: name.value.trim(), value: jsonOf(value), early: early.checked };
    const { sent, awaited } = await post(["queue", queue, "signal"], body, `signal ${body.name} to ${found.id} of ${queue}`);
    toast(sent ? (awaited ? `${found.id} gets “${body.name}”` : `Sent: ${found.id} does not wait for “${body.name}” yet`) : `“${body.name}” was sent to ${found.id} before, and the first one counts: nothing was changed`, sent ? "" : "bad");
    changed();
  }, { fields });
}
