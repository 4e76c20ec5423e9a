// The catalog: its tables, their columns and snapshots; its history, two versions compared; and what was dropped.

import { get, post } from "./api.js";
import { ago, badge, confirm, count, empty, facts, h, moment, panel, path, problem, refill, table, toast } from "./dom.js";

/** A figure that an engine wrote as text; what is no number is shown as it is. */
const number = (text) => (!text ? "–" : Number.isFinite(Number(text)) ? count(Number(text)) : text);
const dotted = (levels) => levels.join(".");

function tree(found, current) {
  const spaces = new Map(found.namespaces.map((levels) => [JSON.stringify(levels), []]));
  for (const kind of ["tables", "views"]) {
    for (const each of found[kind]) {
      const key = JSON.stringify(each.namespace);
      if (!spaces.has(key)) spaces.set(key, []);
      spaces.get(key).push({ ...each, kind });
    }
  }
  const rows = [...spaces].sort(([a], [b]) => (a < b ? -1 : 1));
  if (!rows.length) return empty("It is empty.");
  return h("nav", { class: "tree", "aria-label": "Tables" }, h("ul", {}, rows.map(([key, names]) => {
    const levels = JSON.parse(key);
    return h("li", {}, h("span", {}, dotted(levels)), h("ul", {}, names.map((each) => {
      const where = path("catalog", ...levels, each.name);
      return h("li", {}, each.kind === "views" ? h("span", { class: "faint" }, `${each.name} (view)`) : h("a", { href: where, "data-key": where, "aria-current": current === where ? "page" : undefined }, each.name));
    })));
  })), found.more ? h("p", { class: "faint" }, `${count(found.more)} more are not shown`) : null);
}

function tablePanels(found) {
  return [
    panel(dotted([...found.namespace, found.name]), ["updated ", found.updated_ms ? moment(found.updated_ms) : "never"], h("div", { class: "pad" }, facts(["Location", h("span", { class: "mono" }, found.location)], ["Metadata", h("span", { class: "mono" }, found.metadata_location)], ["Partitioned by", found.partitions || "nothing"], ["Format", `version ${found.format}`], ...Object.entries(found.properties).map(([name, value]) => [name, h("span", { class: "mono" }, value)])))),
    panel("Schema", `${count(found.columns.length)} columns`, table("schema", [["Column", "name mono"], ["Type", "mono"], ["Required", ""], ["About", "wide phone-off"]], found.columns.map((each) => [each.name, each.type, each.required ? "yes" : h("span", { class: "zero" }, "no"), each.doc]))),
    panel("Snapshots", found.snapshots_more ? `${count(found.snapshots_more)} older ones are not shown` : "", found.snapshots.length ? table("snapshots", [["Snapshot", "id mono"], ["When", "nowrap"], ["What", "phone-off"], ["Added", "num"], ["Deleted", "num phone-off"], ["Rows", "num"], ["Files", "num phone-off"]],
      found.snapshots.map((each) => [[each.id, each.id === found.current ? [" ", badge("current", "good")] : null], ago(each.at_ms), each.operation, number(each.added_records), number(each.deleted_records), number(each.total_records), number(each.total_data_files)])) : empty("No snapshot: no data was ever added.")),
  ];
}

export function catalogPage(state, ...names) {
  const left = h("div", { class: "panel" }, empty("Reading the catalog…"));
  const right = h("div", {});
  const history = h("div", {});
  const compared = h("div", { "aria-live": "polite" });
  const heading = h("div", { class: "head" }, h("h1", {}, "Catalog"));
  const element = h("div", {}, heading, h("div", { class: "split" }, left, right), compared, history);
  const current = names.length > 1 ? path("catalog", ...names) : "";
  const writes = Boolean(state.config?.writes);
  let seen = -1;
  let found = null;

  const undrop = (change) => confirm(`Put ${dotted([...change.namespace, change.name])} back?`, `The ${change.kind} ${dotted([...change.namespace, change.name])} becomes what it was when it was dropped last. Nothing else changes.`, "Undrop", async () => {
    await post(["catalog", "undrop"], { namespace: change.namespace, name: change.name }, `undrop ${dotted([...change.namespace, change.name])}`);
    toast(`${dotted([...change.namespace, change.name])} is back`);
    await reload();
  });

  /** A drop can be undone while nothing of that name is there, and only the last one. */
  function droppable(change, offered) {
    const key = JSON.stringify([change.namespace, change.name]);
    const taken = [...found.tables, ...found.views].some((each) => JSON.stringify([each.namespace, each.name]) === key);
    if (!writes || taken || offered.has(key)) return null;
    offered.add(key);
    return h("button", { type: "button", class: "small", "data-key": `undrop ${key}`, onclick: () => undrop(change) }, "Undrop");
  }

  function row(each, offered) {
    const changes = each.changes.map((change) => dotted([...change.namespace, change.name]));
    const what = each.what.startsWith("rename") ? changes.join(" → ") : changes.join(", ");
    const dropped = each.what.startsWith("drop") ? each.changes.filter((change) => change.gone && change.kind !== "namespace") : [];
    return h("div", { class: "row" }, h("span", {}, `${each.what} `, h("b", {}, what)), dropped.map((change) => droppable(change, offered)));
  }

  async function compare(old, fresh) {
    try {
      const made = await get("catalog", "difference", old, fresh);
      const kinds = { added: "good", removed: "bad", changed: "warn" };
      refill(compared, panel(`From version ${made.old.version} to ${made.new.version}`, [moment(made.old.at), " to ", moment(made.new.at)], made.changes.length ? table("difference", [["Change", ""], ["Kind", ""], ["Name", "name"]], made.changes.map((each) => [badge(each.change, kinds[each.change]), each.kind, dotted(each.name)])) : empty("Nothing differs.")));
    } catch (error) {
      refill(compared, problem(error.message));
    }
    compared.scrollIntoView({ block: "nearest" });
  }

  function comparing() {
    const choices = () => found.commits.map((each) => h("option", { value: each.version }, `version ${each.version}`));
    const [old, fresh] = [h("select", { "aria-label": "Older version", id: "older" }, choices()), h("select", { "aria-label": "Newer version", id: "newer" }, choices())];
    old.selectedIndex = Math.min(1, found.commits.length - 1);
    return h("span", { class: "row note" }, "Compare", old, "with", fresh, h("button", { type: "button", class: "small", "data-key": "compare", onclick: () => compare(old.value, fresh.value) }, "Compare"));
  }

  function drawHistory() {
    const offered = new Set();
    refill(history, panel("History", found.commits.length ? comparing() : "", found.faults.map(problem), table("history", [["Version", "nowrap"], ["When", "nowrap"], ["Who", ""], ["What", "wide"], ["Token", "num phone-off"]],
      found.commits.map((each) => [count(each.version), ago(each.at), each.rows.map((one) => one.actor).filter(Boolean).join(", ") || h("span", { class: "zero" }, "–"), each.rows.length ? each.rows.map((one) => row(one, offered)) : h("span", { class: "faint" }, "a new leader"), count(each.token)]))));
  }

  async function reload() {
    try {
      found = await get("catalog");
    } catch (error) {
      left.hidden = true;
      return refill(right, error.status === 404 ? panel("Catalog", "", empty("No table was ever published here. ", h("code", {}, "limpet serve"), " serves a catalog.")) : problem(error.message));
    }
    left.hidden = false;
    refill(heading, h("h1", {}, "Catalog"), h("span", { class: "muted" }, `version ${count(found.version)}, `, ago(found.at)));
    refill(left, tree(found, current));
    drawHistory();
    if (!current) return refill(right, panel("Tables", `${count(found.tables.length)} tables, ${count(found.views.length)} views`, empty("Choose a table to see its columns and snapshots.")));
    try {
      refill(right, tablePanels(await post(["catalog", "table"], { namespace: names.slice(0, -1), name: names.at(-1) })));
    } catch (error) {
      refill(right, problem(error.message));
    }
    return null;
  }

  reload();
  return {
    element,
    reload,
    update(overview) {
      if (seen !== -1 && overview.versions.catalog !== seen) reload();
      seen = overview.versions.catalog;
    },
  };
}
