// Charts over time by uPlot, each with a table of the same values for those who do not see it.

import uPlot from "./uplot/uPlot.esm.js";
import { el, table } from "./dom.js";
import { number } from "./format.js";

const STROKES = ["#2f81f7", "#8a94a3"];
const HEIGHT = 170;
const MOST_TOLD = 20;
const TICK_ROOM = 80;
const DAY = 86400;

// lines: [{name, column, least}]; steps: values hold until the next one; least: the column with the least of the time that a row stands for;
// words: how the caption calls a line's newest value.
export function chart({ title, lines, steps = false, unit = () => "", words = (name) => name }) {
  const place = el("div", { class: "plot", role: "img", "aria-label": `${title}: a chart; its values are in the table below it` });
  const told = table({
    caption: title, rows: [], key: (row) => row.at, none: "no values yet",
    columns: [
      { name: "Time", keep: true, cell: (row) => new Date(row.at * 1000).toLocaleTimeString() },
      ...lines.map((line, at) => ({ name: line.name, number: true, cell: (row) => number(row.values[at]) })),
    ],
  });
  const lows = lines.flatMap((line, of) => (line.least === undefined ? [] : [{ of, column: line.least }]));
  const newest = el("p", { class: "soft" });
  const details = el("details", {}, el("summary", {}, "Values as a table"), told.box);
  const box = el("section", {}, el("h3", {}, title), newest, place, details);
  let plot;
  let sync = () => {};
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const resolved = el("span");
    document.body.append(resolved);
    const of = (name) => { resolved.style.color = style.getPropertyValue(name); return getComputedStyle(resolved).color; };
    const found = { soft: of("--soft"), line: of("--line") };
    resolved.remove();
    return found;
  };
  const make = (data) => {
    const { soft, line } = colours();
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(200, place.clientWidth || 320),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { range: (u, low, high) => (steps ? [0, Math.max(1, high) * 1.1] : low === null ? [0, 1] : padded(low, high)) } },
      axes: [{ ...axis, space: TICK_ROOM, values: (u, ticks, at, room, step) => ticks.map((tick) => clock(tick, step)) }, { ...axis, size: (u, labels) => 24 + 7 * Math.max(3, ...(labels ?? []).map((label) => label.length)), values: (u, ticks) => ticks.map((tick) => (steps && !Number.isInteger(tick) ? "" : number(tick, 3))) }],
      series: [{}, ...lines.map((shown, at) => ({
        label: shown.name,
        stroke: STROKES[at],
        width: at === 0 ? 2 : 1.5,
        dash: at === 0 ? undefined : [5, 4],
        spanGaps: false,
        points: { show: false },
        paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      })), ...lows.map((low) => ({ stroke: "transparent", points: { show: false }, paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined }))],
      bands: lows.map((low, at) => ({ series: [1 + low.of, 1 + lines.length + at], fill: `${STROKES[low.of]}40` })),
    }, data, place);
  };
  const draw = (history) => {
    const rows = history.rows;
    const data = [rows.map((row) => row[0]), ...[...lines, ...lows].map((line) => rows.map((row) => row[line.column]))];
    if (plot) plot.setData(data); else make(data);
    const last = lines.map((line, at) => [line.name, data[at + 1].findLast((value) => value !== null && value !== undefined)]);
    newest.textContent = last.filter(([, value]) => value !== undefined).map(([name, value]) => `${words(name)} ${number(value)}${unit()}`).join(", ") || "no values yet";
    told.fill(rows.filter((row) => lines.some((line) => row[line.column] !== null)).slice(-MOST_TOLD).reverse()
      .map((row) => ({ at: row[0], values: lines.map((line) => row[line.column]) })));
    sync = () => make(data);
  };
  const resized = new ResizeObserver(() => { if (plot && place.clientWidth) plot.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT }); });
  resized.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const recolour = () => sync();
  scheme.addEventListener("change", recolour);
  return { box, draw, close: () => { resized.disconnect(); scheme.removeEventListener("change", recolour); plot?.destroy(); } };
}

const padded = (low, high) => { const room = (high - low || Math.abs(high) || 1) * 0.1; return [low >= 0 ? Math.max(0, low - room) : low - room, high + room]; };

// A tick's label; step: seconds from tick to tick.
const clock = (at, step) => {
  const date = new Date(at * 1000);
  if (step >= DAY) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) });
};
