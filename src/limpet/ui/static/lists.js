// What the lists of a queue show: a search over them, and the list of what ended lately.

import { get } from "./api.js";
import { ago, badge, count, empty, h, moment, problem, refill, table, tile, tookText } from "./dom.js";
import { stateOf } from "./task.js";

const SEARCHED_CHARS = 80;
const AGAIN_MS = 5000;
const FIRST = 25;
const OPEN = "limpet-ui-ended";

// ---- search ----

/** A field that filters rows by their id, error, payload and so on. It stays as it is while the lists are drawn again. */
export function searchBar(changed, entered) {
  const input = h("input", { type: "search", class: "grow", placeholder: "Search id, error, payload", "aria-label": "Search what is listed", "aria-keyshortcuts": "/", autocomplete: "off", spellcheck: "false", maxlength: 200 });
  const said = h("span", { class: "muted", role: "status" });
  const words = () => input.value.toLowerCase().split(/\s+/).filter(Boolean);
  input.addEventListener("input", changed);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && input.value.trim()) {
      event.preventDefault(); // else the key presses a button of the dialog that opens
      entered(input.value.trim());
    }
    if (event.key === "Escape" && input.value) {
      input.value = "";
      changed();
    }
  });
  return {
    element: h("div", { class: "row search", role: "search" }, input, said),
    focus: () => input.focus(),
    text: () => input.value.trim(),
    say: (...text) => refill(said, text),
    /** Whether all words of the search are somewhere in these texts. */
    fits: (...texts) => words().every((word) => texts.some((text) => text && String(text).toLowerCase().includes(word))),
    /** A line with the part of a payload in which a word was found, unless the other texts say it. */
    excerpt(payload, ...texts) {
      const word = words().find((each) => payload?.toLowerCase().includes(each) && !texts.some((text) => String(text ?? "").toLowerCase().includes(each)));
      if (!word) return null;
      const at = Math.max(0, payload.toLowerCase().indexOf(word) - SEARCHED_CHARS / 4);
      return h("div", { class: "excerpt mono faint" }, (at ? "…" : "") + payload.slice(at, at + SEARCHED_CHARS) + (payload.length > at + SEARCHED_CHARS ? "…" : ""));
    },
  };
}

// ---- what ended lately ----

/** The tasks that ended last. They are read when the list is opened, and then again when the queue changes. */
export function endedList(queue, search, opens) {
  const note = h("span", { class: "note" }, "completed, failed and cancelled; the newest first");
  const body = h("div", {});
  const element = h("details", { class: "panel ended" }, h("summary", {}, h("h2", {}, "Ended lately"), note), body);
  let found = null;
  let wrong = "";
  let readAt = 0;
  let timer = null;
  let all = false;
  element.open = localStorage.getItem(OPEN) === "yes";

  async function read() {
    readAt = Date.now();
    try {
      [found, wrong] = [await get("queue", queue, "ended"), ""];
    } catch (error) {
      wrong = error.message;
    }
    draw();
  }

  function state(each) {
    return each.state === "completed" && each.failed ? [stateOf(each), " ", badge(`${count(each.failed)} failed`, "bad")] : stateOf(each);
  }

  /** How long handlers took, of those that completed lately. */
  function durations(took) {
    if (!took?.tasks) return null;
    const of = `of ${count(took.tasks)} that completed lately`;
    return h("div", { class: "tiles inner" }, tile("Half take at most (p50)", tookText(took.p50_s), { sub: of }), tile("99 of 100 at most (p99)", tookText(took.p99_s), { sub: of }), tile("The longest", tookText(took.longest_s), { sub: of }));
  }

  const row = (each) => [
    [opens(each.id), each.tasks > 1 ? [" ", badge(`${count(each.tasks)} tasks`)] : null, search.excerpt(each.payload, each.id, each.error, each.payload.slice(0, SEARCHED_CHARS))],
    h("span", { class: "mono one-line" }, each.error || each.payload.slice(0, SEARCHED_CHARS) || h("span", { class: "zero" }, "–")),
    state(each), tookText(each.took_s), count(each.attempts), ago(each.finished_at), moment(each.finished_at),
  ];

  const rows = () => found.ended.filter((each) => search.fits(each.id, each.error, each.payload, each.state, each.worker));

  function draw() {
    if (!found) return refill(body, wrong ? problem(wrong) : empty("Reading what ended…"));
    const fitting = rows();
    const shown = all || search.text() ? fitting : fitting.slice(0, FIRST);
    const left = fitting.length - shown.length;
    const notes = [];
    if (found.more) notes.push(`the last ${count(found.ended.length)} are listed`);
    if (found.sampled) notes.push("of many receipts only those of the tasks that were pushed last are looked at: retries, and tasks with ids of your own, may be missing");
    if (found.unreadable) notes.push(`${count(found.unreadable)} unreadable receipts are passed over`);
    return refill(body, wrong ? problem(wrong) : null, durations(found.durations),
      shown.length ? table("ended", [["Task", "id"], ["Error, or payload", "wide phone-off"], ["State", ""], ["Took", "num"], ["Attempts", "num phone-off"], ["Ended", "num nowrap desk-off"], ["Ended", "nowrap phone-off"]], shown.map(row)) : empty(found.ended.length ? "Nothing that ended lately fits the search." : "Nothing has ended here, or its receipts are gone."),
      left ? h("p", { class: "empty" }, h("button", { type: "button", class: "small", "data-key": "all ended", onclick: () => { all = true; draw(); } }, `Show ${count(left)} more`)) : null,
      notes.length ? h("p", { class: "source" }, notes.join("; ")) : null);
  }

  element.addEventListener("toggle", () => {
    localStorage.setItem(OPEN, element.open ? "yes" : "no");
    if (element.open) draw();
    if (element.open) read();
  });
  return {
    element,
    draw: () => element.open && draw(),
    /** What is listed and searched. */
    listed: () => (element.open ? (found?.ended ?? []) : []),
    /** The queue has changed: read again, but not more often than every 5 s. */
    changed() {
      if (!element.open || timer) return;
      timer = setTimeout(() => {
        timer = null;
        if (element.open && element.isConnected) read();
      }, Math.max(0, readAt + AGAIN_MS - Date.now()));
    },
  };
}
