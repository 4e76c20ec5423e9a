// Elements, figures and dialogs. Text reaches the page only as text nodes: nothing here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${Math.max(0, Math.min(100, value))}%`;
    else if (name === "left%") element.style.marginLeft = `${Math.max(0, Math.min(100, value))}%`;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** An element: h("td", {class: "num"}, "12"). Children are nodes or text; a function is a listener. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Replace what is in an element, and keep the focus and open details of what has the same data-key. */
export function refill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = new Set([...element.querySelectorAll("details[open]")].map((each) => each.dataset.key));
  const scrolled = [...element.querySelectorAll("[data-scroll]")].map((each) => [each.dataset.scroll, each.scrollLeft]);
  element.replaceChildren(...children.flat(3).filter(Boolean));
  for (const each of element.querySelectorAll("details[data-key]")) if (open.has(each.dataset.key)) each.open = true;
  for (const [key, left] of scrolled) {
    const same = [...element.querySelectorAll("[data-scroll]")].find((each) => each.dataset.scroll === key);
    if (same) same.scrollLeft = left;
  }
  if (focused) [...element.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused)?.focus({ preventScroll: true });
}

// ---- figures ----

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return whole.format(value);
  for (const [unit, size] of [["B", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return `${trimmed(value / size)}${unit}`;
  return whole.format(value);
}

const trimmed = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, ""));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  return value < 10 ? value.toFixed(1) : short(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${trimmed(value / size)} ${unit}`;
  return `${value} B`;
}

export function dollars(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "$0";
  if (value < 0.01) return "<$0.01";
  return value < 100 ? `$${value.toFixed(2)}` : `$${whole.format(value)}`;
}

/** A span of time, as people say it. */
export function span(seconds) {
  const s = Math.max(0, seconds);
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

/** A span of time of a handler: exact where it is short. */
export function tookText(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds >= 10 ? span(seconds) : seconds >= 1 ? `${seconds.toFixed(1)} s` : seconds < 0.001 ? "<1 ms" : `${Math.round(seconds * 1000)} ms`;
}

const seconds_since = (at) => (Date.now() - new Date(at).getTime()) / 1000;

// Times are those of this browser's zone; on hover they are in UTC too.
const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const hours = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const utc = (date) => `${date.toISOString().slice(0, 19).replace("T", " ")} UTC`;
const isNone = (date) => Number.isNaN(date.getTime());

/** How long ago a time was, with the time itself on hover. */
export function ago(at) {
  if (!at) return h("span", { class: "faint" }, "never");
  return h("time", { datetime: at, title: both(at) }, `${span(seconds_since(at))} ago`);
}

/** A local time; what is no time is shown as it is. */
export function moment(at) {
  const date = new Date(at);
  return isNone(date) ? String(at) : h("time", { datetime: date.toISOString(), title: utc(date) }, local.format(date));
}

/** A time as text for a title: local, and in UTC. */
export function both(at) {
  const date = new Date(at);
  return isNone(date) ? String(at) : `${local.format(date)} (${utc(date)})`;
}

/** Hour and minute of a time, local. */
export const clock = (at) => hours.format(new Date(at));

/** A figure in a table: grey if it is zero, with a plus if it is a lower bound. */
export function figure(value, { least = false, bad = false, text = count } = {}) {
  const kind = value ? (bad ? "bad-text" : "") : "zero";
  const title = least ? "At least: counting stopped at 999 objects of a kind" : undefined;
  return h("span", { class: kind, title }, text(value) + (least ? "+" : ""));
}

/** A line over 60 minutes, the oldest on the left; it is dotted where no value is known. */
export function sparkline(values, label) {
  if (!values?.length) return h("span", { class: "faint" }, "–");
  const first = values.findIndex((value) => value !== null);
  if (first < 0) return h("span", { class: "faint" }, "–");
  const top = Math.max(1, ...values);
  const points = values.map((value, at) => `${((at / (values.length - 1)) * 100).toFixed(2)},${(22 - ((value ?? 0) / top) * 20).toFixed(2)}`).slice(first);
  if (points.length === 1) points.unshift(points[0].replace(/^[^,]+/, "97"));
  const unknown = first > 0 ? svg("path", { class: "unknown", d: `M0,22L${points[0].split(",")[0]},22` }) : null;
  const line = `M${points.join("L")}`;
  const attributes = { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label };
  return svg("svg", attributes, svg("title", {}, label), unknown, svg("path", { class: "area", d: `${line}L100,23L${points[0].split(",")[0]},23Z` }), svg("path", { d: line }));
}

// ---- parts of a page ----

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);
export const panel = (title, note, ...content) => h("section", { class: "panel" }, h("header", {}, h("h2", {}, title), note ? h("span", { class: "note" }, note) : null), ...content);
export const empty = (...text) => h("p", { class: "empty" }, ...text);
export const problem = (text) => h("p", { class: "problem", role: "alert" }, text);

export function tile(label, value, { sub, bad = false, zero = false, extra } = {}) {
  return h("div", { class: `tile ${bad ? "bad" : zero ? "zero" : ""}` }, h("div", { class: "label" }, label), h("div", { class: "value" }, value), extra ?? null, sub ? h("div", { class: "sub", title: sub }, sub) : null);
}

/** A table. Columns: [title, class]; rows: lists of cells. */
export function table(name, columns, rows) {
  const classes = columns.map(([, kind]) => kind ?? "");
  return h("div", { class: "scroll", "data-scroll": name, tabindex: rows.length > 200 ? "0" : undefined },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { class: kind, scope: "col" }, title)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td", { class: classes[at] }, cell)))))));
}

export function facts(...pairs) {
  return h("dl", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export const link = (where, text, attributes = {}) => h("a", { href: where, "data-key": where, ...attributes }, text);
export const path = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

// ---- dialogs ----

function show(dialog) {
  const before = document.activeElement;
  document.body.append(dialog);
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
  return dialog;
}

/** A dialog to read; what is in it may be filled later. */
export function reader(title, ...content) {
  const dialog = h("dialog", { "aria-label": title });
  dialog.append(h("header", {}, h("h2", {}, title), h("button", { class: "quiet", type: "button", onclick: () => dialog.close() }, "Close")), ...content);
  return show(dialog);
}

/** Ask before something happens. `what` names it; `act` does it, and its error is shown in the dialog. */
export function confirm(title, what, button, act, { danger = false, fields = [] } = {}) {
  const wrong = h("div", {});
  const go = h("button", { class: danger ? "danger" : "primary", type: "submit" }, button);
  const dialog = h("dialog", { class: "narrow", "aria-label": title });
  const form = h("form", { method: "dialog" },
    h("header", {}, h("h2", {}, title)),
    h("div", { class: "content" }, h("p", {}, what), ...fields, wrong),
    h("footer", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), go));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      wrong.replaceChildren(problem(error.message));
      go.disabled = false;
    }
  });
  dialog.append(form);
  show(dialog);
  if (!fields.length) go.focus();
  return dialog;
}

export function toast(text, kind = "") {
  const shown = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), kind ? 9000 : 5000);
}
