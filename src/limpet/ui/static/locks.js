// Locks: who holds what, and since when.

import { ago, badge, count, empty, h, panel, problem, refill } from "./dom.js";
import { locksTable } from "./overview.js";

export function locksPage() {
  const element = h("div", {}, empty("Reading the locks…"));
  return {
    element,
    update({ locks, trouble, read_at }) {
      const bad = Object.entries(locks.unreadable);
      const held = locks.locks.filter((each) => each.state !== "free");
      const free = locks.locks.filter((each) => each.state === "free");
      refill(element,
        h("div", { class: "head" }, h("h1", {}, "Locks"), h("span", { class: "muted" }, `${count(held.length)} held, ${count(free.length)} free; read `, ago(read_at.locks))),
        trouble.locks ? problem(trouble.locks) : null,
        panel("Held", "overdue: held, but not renewed within its TTL; the next one who wants it takes it over", held.length ? locksTable(held) : empty("No lock is held.")),
        free.length ? panel("Free", "used before; the token never goes down", locksTable(free)) : null,
        locks.more ? h("p", { class: "muted" }, "There are more locks; the first 200 were looked at. ", h("code", {}, "limpet lock ls"), " shows all.") : null,
        bad.length ? panel("Unreadable", "", h("div", { class: "pad" }, bad.map(([key, error]) => h("p", {}, badge("unreadable", "bad"), " ", h("span", { class: "mono" }, key), " ", error)))) : null);
    },
  };
}
