// The shell: which page is shown, the live feed, the theme, the token.

import { ApiError, get, listen, post, token } from "./api.js";
import { both, h, link, path, problem, refill, short, span, toast } from "./dom.js";
import { catalogPage } from "./catalog.js";
import { indexPage, indexesPage } from "./index.js";
import { locksPage } from "./locks.js";
import { overviewPage } from "./overview.js";
import { queuePage, queuesPage } from "./queue.js";
import { storePage } from "./store.js";

const $ = (id) => document.getElementById(id);

/** What all pages share: the server's settings, and the newest overview. */
export const state = { config: null, overview: null };

let page = null;
let listening = null;
let lookedAt = 0;

// ---- pages ----

const ROUTES = {
  "": [overviewPage, "Overview"],
  queues: [queuesPage, "Queues"],
  queue: [queuePage],
  indexes: [indexesPage, "Indexes"],
  index: [indexPage],
  catalog: [catalogPage, "Catalog"],
  locks: [locksPage, "Locks"],
  store: [storePage, "Store"],
};

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  return ROUTES[parts[0]] ? parts : [""];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function open() {
  const [name, ...names] = route();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.remove();
  page = ROUTES[name][0](state, ...names);
  document.title = [names[0], ROUTES[name][1], "Limpet"].filter(Boolean).join(" · ");
  $("main").replaceChildren(page.element);
  if (state.overview) page.update?.(state.overview);
  navigate();
  $("nav").querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
}

function navigate() {
  const [name, first] = route();
  const parent = { queue: "queues", index: "indexes" }[name];
  const current = (where) => (where === name ? "page" : where === parent ? "true" : undefined);
  const found = state.overview;
  const failed = found?.queues.reduce((sum, each) => sum + (each.failed ?? 0), 0);
  const counts = { queues: failed ? short(failed) : "", locks: found ? short(found.locks.locks.filter((each) => each.state !== "free").length) : "", indexes: found ? short(found.indexes.length) : "", catalog: found?.catalog ? short(found.catalog.tables) : "" };
  const tops = Object.entries(ROUTES).filter(([, [, title]]) => title);
  const deep = (kind, names) => names.slice(0, 30).map((each) => link(path(kind, each), h("span", {}, each), { class: "deep", "aria-current": name === kind && first === each ? "page" : undefined }));
  const queues = found?.queues ?? [];
  refill($("nav"),
    tops.map(([where, [, title]]) => link(`#/${where}`, [h("span", {}, title), h("span", { class: `count ${where === "queues" && failed ? "bad" : ""}` }, counts[where] ?? "")], { "aria-current": current(where) })),
    queues.length ? h("div", { class: "nav-title" }, "Queues") : null,
    queues.slice(0, 30).map((each) => link(path("queue", each.queue), [h("span", {}, each.queue), h("span", { class: `count ${each.failed ? "bad" : ""}` }, short(each.failed || each.pending))], { class: "deep", title: each.queue, "aria-current": name === "queue" && first === each.queue ? "page" : undefined })),
    found?.indexes.length ? h("div", { class: "nav-title" }, "Indexes") : null,
    deep("index", found?.indexes.map((each) => each.name) ?? []));
}

// ---- the live feed ----

function say(kind, text, more = "") {
  $("live").dataset.state = kind;
  refill($("live"), h("span", {}, text), more ? h("span", { class: "long faint" }, more) : null);
}

function told(overview) {
  state.overview = overview;
  lookedAt = Date.now();
  $("live").title = `As of ${overview.at}, local ${both(overview.at)}`;
  page?.update?.(overview);
  navigate();
  tell();
}

function tell() {
  if (!state.overview || $("live").dataset.state === "lost") return;
  const wait = state.overview.wait_s - (Date.now() - lookedAt) / 1000;
  const idle = state.overview.wait_s > 10;
  say("live", idle ? "Idle" : "Live", idle ? `nothing changes; looks again in ${span(Math.max(0, wait))}` : "");
}

async function follow() {
  listening?.abort();
  const mine = (listening = new AbortController());
  for (let tries = 0; !mine.signal.aborted; tries += 1) {
    try {
      await listen((overview) => {
        tries = 0;
        $("live").dataset.state = "live";
        told(overview);
      }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error instanceof ApiError && [401, 403].includes(error.status)) return gate(error.status === 401 ? "This token is not accepted." : error.message);
    }
    if (mine.signal.aborted) return;
    say("lost", "Not connected", "trying again");
    await new Promise((done) => setTimeout(done, Math.min(15000, 500 * 2 ** tries)));
  }
}

// A hidden page closes its stream and sends no requests.
document.addEventListener("visibilitychange", () => {
  if (!state.config) return;
  if (document.hidden) listening?.abort();
  else follow();
});

// ---- the token ----

function gate(message) {
  state.config = null;
  listening?.abort();
  say("lost", "Not signed in");
  $("refresh").hidden = true;
  const input = h("input", { type: "password", id: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = h("div", {}, token.get() ? problem(message) : null);
  const form = h("form", { class: "panel" },
    h("header", {}, h("h2", {}, "This dashboard asks for a token")),
    h("div", { class: "pad" }, wrong, h("label", { class: "field" }, h("span", {}, "Token"), input), h("button", { class: "primary", type: "submit" }, "Show the fleet")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    token.set(input.value.trim());
    start();
  });
  page = null;
  $("main").replaceChildren(h("div", { class: "gate" }, form));
  input.focus();
}

// ---- light and dark ----

const THEME = "limpet-ui-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  const chosen = localStorage.getItem(THEME) ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = chosen;
  $("theme").textContent = chosen === "dark" ? "Light" : "Dark";
}

$("theme").addEventListener("click", () => {
  localStorage.setItem(THEME, document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  theme();
});
dark.addEventListener("change", theme);

// ---- start ----

async function start() {
  try {
    state.config = await get("config");
  } catch (error) {
    if ([401, 403].includes(error.status)) return gate(error.status === 401 ? "This token is not accepted." : error.message);
    say("lost", "Not connected");
    return $("main").replaceChildren(problem(error.message));
  }
  $("refresh").hidden = false;
  $("fleet").textContent = state.config.url;
  $("fleet").title = state.config.url;
  $("version").textContent = `limpet ${state.config.version}`;
  open();
  follow();
}

$("refresh").addEventListener("click", async () => {
  try {
    await post(["refresh"]);
    page?.reload?.();
  } catch (error) {
    toast(error.message, "bad");
  }
});
addEventListener("hashchange", () => {
  if (!state.config) return;
  open();
  $("main").focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey;
  if (event.key !== "/" || typing || !page?.search || document.querySelector("dialog[open]")) return;
  event.preventDefault();
  page.search();
});
$("skip").addEventListener("click", () => $("main").focus());
setInterval(tell, 1000);
theme();
start();
