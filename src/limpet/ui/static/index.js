// An index: its shards, one record, SQL, and what could not be read.

import { get, post } from "./api.js";
import { ago, bytes, count, empty, facts, h, link, moment, panel, problem, refill, short, svg, table, tile } from "./dom.js";
import { indexTable } from "./overview.js";

export function indexesPage() {
  const element = h("div", {}, empty("Reading the indexes…"));
  return {
    element,
    update: (found) => refill(element, h("div", { class: "head" }, h("h1", {}, "Indexes")), found.trouble.indexes ? problem(found.trouble.indexes) : null,
      panel("Indexes", "", found.indexes.length ? indexTable(found) : empty("There is no index here. ", h("code", {}, "limpet index create"), " makes one."))),
  };
}

/** One square for each shard, coloured by its size; a dot where something waits. */
function shardMap(found) {
  const shards = found.sizes.length;
  if (!shards) return empty("An index of this depth has too many shards to draw.");
  const side = Math.ceil(Math.sqrt(shards));
  const top = Math.max(1, ...found.sizes);
  const most = Math.max(1, ...Object.values(found.backlog));
  const squares = found.sizes.map((size, at) => {
    const id = at.toString(16).padStart(found.depth, "0");
    const [x, y] = [at % side, Math.floor(at / side)];
    const level = size ? 1 + Math.min(4, Math.floor((size / top) * 5)) : 0;
    const waits = found.backlog[id] ?? 0;
    const label = `shard ${id}: ${bytes(size)}${waits ? `, ${count(waits)} waiting` : ""}`;
    return svg("g", {}, svg("title", {}, label), svg("rect", { class: `b${level}`, x: x + 0.05, y: y + 0.05, width: 0.9, height: 0.9, rx: 0.15 }),
      waits ? svg("circle", { cx: x + 0.5, cy: y + 0.5, r: 0.1 + 0.14 * Math.sqrt(waits / most) }) : null);
  });
  const label = `${count(shards)} shards, ${bytes(found.bytes)}, ${count(found.waiting)} objects waiting`;
  return h("div", { class: "pad" }, svg("svg", { class: "map", viewBox: `0 0 ${side} ${Math.ceil(shards / side)}`, role: "img", "aria-label": label }, squares),
    h("div", { class: "legend" }, h("span", {}, h("i", { class: "few" }), "small"), h("span", {}, h("i", { class: "much" }), `large: ${bytes(top)}`), h("span", {}, h("i", { class: "waits" }), "waits to be compiled")));
}

function lookup(index, found) {
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const key = h("input", { class: "grow mono", placeholder: found.key || "key", "aria-label": `The ${found.key || "key"} of a record`, autocomplete: "off", spellcheck: "false", required: true });
  const form = h("form", { class: "pad row" }, key, h("button", { type: "submit" }, "Find"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const { record } = await get("index", index, "record", key.value);
      answer.replaceChildren(record ? facts(...Object.entries(record).map(([name, value]) => [name, value === null ? h("span", { class: "faint" }, "null") : h("span", { class: "mono" }, value)])) : empty(`There is no record ${key.value}.`));
    } catch (error) {
      answer.replaceChildren(problem(error.message));
    }
  });
  return panel("Find a record", `by ${found.key}`, form, answer);
}

function sqlBox(state, index) {
  const answer = h("div", { "aria-live": "polite" });
  const query = h("textarea", { "aria-label": "SQL", spellcheck: "false", rows: 4 });
  query.value = `select * from "${index.replaceAll('"', '""')}" limit 20`;
  const go = h("button", { type: "button", class: "primary" }, "Run");
  async function run() {
    go.disabled = true;
    try {
      const found = await post(["sql"], { sql: query.value });
      answer.replaceChildren(
        found.rows.length ? table("sql", found.columns.map((name, at) => [name, found.numbers[at] ? "mono num" : "mono nowrap"]), found.rows.map((row) => row.map((cell) => (cell === null ? h("span", { class: "faint" }, "null") : cell)))) : empty("No row."),
        h("p", { class: "pad muted" }, `${count(found.count)} ${found.count === 1 ? "row" : "rows"}${found.rows.length < found.count ? `, the first ${count(found.rows.length)} are shown` : ""}`),
        ...found.notes.map((note) => h("p", { class: "pad muted" }, note)));
    } catch (error) {
      answer.replaceChildren(h("div", { class: "pad" }, problem(error.message)));
    }
    go.disabled = false;
  }
  go.addEventListener("click", run);
  query.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run());
  const note = state.config?.sql ? "one SELECT over the whole fleet, 30 s at most; it reads no files" : "needs pip install 'limpet[sql]'";
  return panel("SQL", note, h("div", { class: "pad" }, query, h("div", { class: "row", id: "sql-go" }, go, h("span", { class: "faint" }, "Ctrl+Enter"))), answer);
}

export function indexPage(state, index) {
  const top = h("div", {}, empty("Reading the index…"));
  const map = h("div", {});
  const columns = h("div", {});
  const find = h("div", {});
  const below = h("div", {});
  const element = h("div", {}, top, h("div", { class: "grid" }, map, h("div", {}, find, columns)), sqlBox(state, index), below);
  let seen = -1;

  async function reload() {
    let found;
    try {
      found = await get("index", index);
    } catch (error) {
      return refill(top, h("div", { class: "head" }, h("h1", {}, index)), problem(error.message));
    }
    if (!find.firstChild) find.append(lookup(index, found));
    const least = (name) => (found.at_least.includes(name) ? "+" : "");
    refill(map, panel("Shards", "colour: size; dot: backlog", shardMap(found)));
    refill(columns, panel("Columns", `key: ${found.key}`, table("columns", [["Column", "name mono"], ["Type", "mono"], ["Required", ""]], found.columns.map((each) => [each.name, each.type, each.required ? "yes" : h("span", { class: "zero" }, "no")]))));
    refill(below, found.quarantine.length ? panel("Quarantine", "what could not be read, with the reason", table("quarantine", [["Object", "id mono"], ["Reason", "wide"], ["Found", "nowrap"]], found.quarantine.map((each) => [each.key, each.reason, each.found_at ? moment(each.found_at) : "–"]))) : null);
    return refill(top,
      h("div", { class: "head" }, h("div", { class: "crumb" }, link("#/indexes", "Indexes")), h("h1", {}, index)),
      found.trouble ? problem(found.trouble) : null,
      h("div", { class: "tiles" },
        tile("Records", short(found.records), { zero: !found.records, sub: "as of the last compile" }),
        tile("Size", bytes(found.bytes), { zero: !found.bytes, sub: `${count(found.sizes.length)} shards` }),
        tile("Waiting", short(found.waiting) + least("waiting"), { zero: !found.waiting, sub: found.oldest_at ? ["oldest ", ago(found.oldest_at).textContent].join("") : "nothing to compile" }),
        tile("Compiled", ago(found.compiled_at), { sub: "a shard was written" }),
        tile("Quarantine", short(found.quarantined) + least("quarantined"), { bad: found.quarantined > 0, zero: !found.quarantined, sub: "unreadable objects" })));
  }

  reload();
  return {
    element,
    reload,
    update(overview) {
      if (seen !== -1 && overview.versions.indexes !== seen) reload();
      seen = overview.versions.indexes;
    },
  };
}
