// Locks: who holds what, and since when.

import { ago, badge, count, empty, h, panel, problem, refill, table } from "./dom.js";
import { locksTable } from "./overview.js";

function freeTable(locks) {
  return table("free", [["Lock", "name"], ["Last holder", "wide"], ["Token", "num"], ["Released", "num nowrap"]],
    locks.map((each) => [each.name, each.holder || h("span", { class: "zero" }, "–"), count(each.token), ago(each.heartbeat_at)]));
}

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
        panel("Held", "overdue: not renewed within its TTL; the next process that asks takes it over", held.length ? locksTable(held) : empty("No lock is held.")),
        free.length ? panel("Free", "used before; the token never goes down", freeTable(free)) : null,
        locks.more ? h("p", { class: "muted" }, "There are more locks; the first 200 were looked at. ", h("code", {}, "limpet lock ls"), " shows all.") : null,
        bad.length ? panel("Unreadable", "", h("div", { class: "pad" }, bad.map(([key, error]) => h("p", {}, badge("unreadable", "bad"), " ", h("span", { class: "mono" }, key), " ", error)))) : null);
    },
  };
}
