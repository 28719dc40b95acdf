// Builds elements. Texts of the cluster reach the page through textContent and setAttribute only, never as HTML.

export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (key === "class") element.className = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Class names come from a closed list: a state may be any text.
const STATES = new Set(["Running", "Ready", "Succeeded", "Failed", "NotReady", "Waiting", "Restarting", "Suspended", "Warning", "leave", "gone", "prepare"]);
export const state = (text) => el("span", { class: STATES.has(text) ? `state ${text}` : "state" }, text || "unknown");

export const time = (stamp, text) => el("time", { datetime: stamp, title: stamp }, text);

const CLOCK_MS = 10000;

// columns: [{name, cell(row), number, wide, keep}]; a cell is text or a node.
export function table({ caption, columns, rows, key, none = "none" }) {
  const body = el("tbody");
  const whole = el(
    "div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "cards" }, el("caption", { class: "hide" }, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : "" }, column.name)))), body),
  );
  const known = new Map();
  // A row that is the same object is left alone until the clock has moved on; of another one only the cells that differ are changed, so
  // that a link keeps the focus.
  const fill = (found) => {
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
        columns.forEach((column, at) => {
          const made = cell(column, row, at);
          if (!made.isEqualNode(entry.row.children[at])) entry.row.children[at].replaceWith(made);
        });
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

function cell(column, row, at) {
  const value = column.cell(row);
  const classes = [column.number && "number", column.wide && "wide", column.keep && "keep", (value === "" || value === "–") && "empty"].filter(Boolean).join(" ");
  return at === 0 ? el("th", { scope: "row", class: classes }, value) : el("td", { class: classes, "data-name": column.name }, value);
}

export function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, more]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? [" ", el("small", {}, more)] : []))));
}
