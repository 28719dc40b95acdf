// Builds elements. Texts of the cluster reach the page through textContent and setAttribute only, never as HTML.

import { ago } from "./format.js";

export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...nodes(children));
  return element;
}

const nodes = (children) => children.flat(Infinity).filter((child) => child !== undefined && child !== null && child !== false)
  .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));

// Fill a place again. Elements that look the same stay, so that nobody loses the focus or a selection. Their listeners stay too, so a listener
// must not depend on values that change.
export function put(place, ...children) {
  const wanted = nodes(children);
  wanted.forEach((made, at) => { if (place.childNodes[at]) become(place.childNodes[at], made); else place.append(made); });
  while (place.childNodes.length > wanted.length) place.lastChild.remove();
}

function become(old, made) {
  if (old.isEqualNode(made)) return;
  // A link to another place replaces the old element: a person must not open a link that they did not read.
  const isOther = old.nodeName !== made.nodeName || !(old instanceof Element) || old.getAttribute("href") !== made.getAttribute("href");
  if (isOther) { old.replaceWith(made); return; }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value; else old.setAttribute(name, value); // the policy forbids the attribute
  }
  put(old, ...made.childNodes);
}

// Class names come from a closed list: a state may be any text.
const TONES = new Map(Object.entries({
  on: ["Running", "Ready"],
  good: ["Succeeded", "Completed"],
  bad: ["Failed", "NotReady", "Error", "CrashLoopBackOff", "OOMKilled", "Evicted", "ImagePullBackOff", "ErrImagePull", "InvalidImageName",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "ContainerCannotRun", "StartError", "DeadlineExceeded"],
  warn: ["Waiting", "Restarting", "Warning", "Pending", "ContainerCreating", "PodInitializing", "Terminating", "Unknown"],
}).flatMap(([tone, words]) => words.map((word) => [word, tone])));
const tone = (text) => TONES.get(text?.replace(/^Init:/, "")) ?? "";
export const isBad = (text) => tone(text) === "bad";
export const state = (text) => el("span", { class: `state ${tone(text)}`.trim() }, text || "unknown");

export const time = (stamp, text) => el("time", { datetime: stamp, title: stamp }, text);

// A time in the future. `tick` counts down without drawing the elements around it.
const until = (stamp) => el("time", { class: "until", datetime: stamp, title: stamp }, ago(stamp));
export const tick = () => { for (const one of document.querySelectorAll("time.until")) put(one, ago(one.dateTime)); };

// The notices of a node or a pod, as the content of a cell.
export const noticeWords = (notices) => notices.map((one, at) => [at ? "; " : "", `${one.meaning}: ${one.words}`, one.by ? [", ", until(one.by)] : ""]);

const CLOCK_MS = 10000;

// columns: [{name, cell(row), number, wide, keep, by(row)}]; a cell is text, a node, or a list of these. A column with `by` can be sorted.
export function table({ caption, columns, rows, key, none = "none" }) {
  const body = el("tbody");
  let sorted = null; // {at, isUp}: the column, and its direction
  let last = rows;
  const headers = columns.map((column, at) => el("th", { scope: "col", class: column.number ? "number" : "" }, column.by
    ? el("button", { type: "button", class: "sort", on: { click: () => { sorted = sorted?.at === at ? (sorted.isUp ? { at, isUp: false } : null) : { at, isUp: true }; fill(last); } } }, column.name)
    : column.name));
  const inOrder = (found) => {
    headers.forEach((header, at) => { if (sorted?.at === at) header.setAttribute("aria-sort", sorted.isUp ? "ascending" : "descending"); else header.removeAttribute("aria-sort"); });
    if (!sorted) return found;
    const { by } = columns[sorted.at];
    return [...found].sort((a, b) => (sorted.isUp ? 1 : -1) * compared(by(a), by(b)));
  };
  const whole = el(
    "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "cards" }, el("caption", { class: "hide" }, caption),
      el("thead", {}, el("tr", {}, headers)), body),
  );
  const known = new Map();
  // A row that is the same object stays as it is until the clock has moved on. In another row only the differences change.
  const fill = (unsorted) => {
    last = unsorted;
    const found = inOrder(unsorted);
    const moment = Math.floor(Date.now() / CLOCK_MS);
    const order = [];
    const there = new Set();
    for (const row of found) {
      const id = key(row);
      there.add(id);
      let entry = known.get(id);
      if (!entry) {
        entry = { row: el("tr", {}, columns.map((column, at) => cell(column, row, at))) };
        known.set(id, entry);
      } else if (entry.of !== row || entry.moment !== moment) {
        put(entry.row, columns.map((column, at) => cell(column, row, at)));
      }
      entry.of = row;
      entry.moment = moment;
      order.push(entry.row);
    }
    for (const [id, entry] of known) if (!there.has(id)) { entry.row.remove(); known.delete(id); }
    order.forEach((row, at) => { if (body.children[at] !== row) body.insertBefore(row, body.children[at] ?? null); });
    whole.hidden = !order.length;
    empty.hidden = order.length > 0;
  };
  const empty = el("p", { class: "soft" }, none);
  const box = el("div", {}, whole, empty);
  fill(rows);
  return { box, fill };
}

const NAMES = new Intl.Collator("en", { numeric: true });

// Rows without a value come first.
function compared(a, b) {
  if (typeof a === "string" && typeof b === "string") return NAMES.compare(a, b);
  return (a ?? -Infinity) - (b ?? -Infinity) || 0;
}

function cell(column, row, at) {
  const value = column.cell(row);
  const made = at === 0 ? el("th", { scope: "row" }, value) : el("td", { "data-name": column.name }, value);
  const isEmpty = ["", "–"].includes(made.textContent);
  made.className = [column.number && "number", column.wide && "wide", column.keep && "keep", isEmpty && "empty"].filter(Boolean).join(" ");
  return made;
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, more, kind]) =>
    el("div", { class: more && kind }, el("dt", {}, name), el("dd", {}, value, more ? [" ", el("small", {}, more)] : []))));
}
