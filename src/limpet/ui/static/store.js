// The store: how fast it answers, and what was asked of it.

import { get } from "./api.js";
import { bytes, count, dollars, empty, facts, h, moment, panel, problem, refill, tile } from "./dom.js";

function verbs(requests, title) {
  const rows = Object.entries(requests).sort(([, a], [, b]) => b - a);
  const top = Math.max(1, ...rows.map(([, value]) => value));
  if (!rows.length) return empty(`No request yet${title}.`);
  return h("div", { class: "pad verbs" }, rows.map(([verb, value]) => [h("span", { class: "mono" }, verb.toUpperCase()), h("span", { class: "track" }, h("i", { "width%": (value / top) * 100 })), h("span", { class: "num" }, count(value))]));
}

export function storePage(state) {
  const element = h("div", {}, empty("Asking the store…"));
  let found = null;
  let wrong = "";
  function draw() {
    const bill = state.overview?.bill;
    if (!found && !wrong) return;
    const price = bill?.free ? `priced as in S3, ${bill.prices_of}` : `prices of ${bill?.provider}, ${bill?.prices_of}`;
    refill(element,
      h("div", { class: "head" }, h("h1", {}, "Store")),
      wrong ? problem(wrong) : null,
      found ? h("div", { class: "tiles" },
        tile("A GET takes", `${found.get_ms[1]} ms`, { sub: `${found.get_ms[0]} to ${found.get_ms[2]} ms, of 3` }),
        tile("Asked by this dashboard", count(bill?.own.requests), { sub: `${dollars(bill?.own.dollars)}, ${price}` }),
        tile("Asked by the work so far", `${count(bill?.work.requests)}${bill?.at_least ? "+" : ""}`, { sub: `${dollars(bill?.work.dollars)}, ${price}` }),
        tile("A month at this rate", dollars(bill?.month_dollars), { sub: "if every hour is as the last one" })) : null,
      h("div", { class: "grid" },
        panel("Requests of this dashboard, by verb", "since it was started", verbs(bill?.own_requests ?? {}, "")),
        found ? panel("What is recorded", "limpet.json", h("div", { class: "pad" }, facts(["URL", h("span", { class: "mono" }, found.url)], ["Formats", Object.entries(found.formats).map(([room, n]) => `${room} ${n}`).join(", ")], ["Features", found.features.join(", ") || "none"], ["Conditional writes", found.conditional ? "yes, as probed" : "no"], ["Probed", moment(found.probed_at)], ["Bytes read", bytes(found.read_bytes)], ["Bytes written", bytes(found.written_bytes)]))) : null),
      h("p", { class: "muted" }, "The work so far is the least that the receipts in the store stand for: heartbeats, lost claims and idle workers are not in it. ", h("code", {}, "limpet queue cost"), " says more."));
  }
  async function reload() {
    try {
      [found, wrong] = [await get("store"), ""];
    } catch (error) {
      wrong = error.message;
    }
    draw();
  }
  reload();
  return { element, update: draw, reload };
}
