// Charts over time by uPlot, each with a table of its values for those who do not see it. The caption has the values where one points, else the
// newest ones, and says which line is which.

import uPlot from "./uplot/uPlot.esm.js";
import { el, put, table } from "./dom.js";
import { number, thinned } from "./format.js";

const STROKES = ["#2f81f7", "#8a94a3"];
const HEIGHT = 170;
const MOST_TOLD = 50;
const TICK_ROOM = 80;
const DAY = 86400;

// lines: [{name, column, least}]; steps: values hold until the next one; least: the column with the least of the time that a row stands for;
// isFromZero: the axis begins there, for noise must not look like a change; isLive: whether the job goes on.
export function chart({ title, lines, steps = false, isFromZero = steps, unit = () => "", isLive = () => true }) {
  const place = el("div", { class: "plot", role: "img", "aria-label": `${title}: a chart; values over its whole time are in the table below it` });
  let isLong = false;
  const moment = (at) => (isLong ? new Date(at * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short", hourCycle: "h23" }) : new Date(at * 1000).toLocaleTimeString(undefined, { hourCycle: "h23" }));
  const told = table({
    caption: title, rows: [], key: (row) => `${row.at} ${row.values}`, none: "no values yet",
    columns: [
      { name: "Time", keep: true, cell: (row) => moment(row.at) },
      ...lines.map((line, at) => ({ name: line.name, number: true, cell: (row) => number(row.values[at]) })),
    ],
  });
  const lows = lines.flatMap((line, of) => (line.least === undefined ? [] : [{ of, column: line.least }]));
  const caption = el("p", { class: "soft caption" }, "no values yet");
  const words = el("summary", {}, "Values as a table");
  const details = el("details", {}, words, told.box);
  const box = el("section", {}, el("h3", {}, title), caption, place, details);
  let plot;
  let data = [[]];
  // at: the row where one points, if any.
  const say = (at) => {
    const newest = lines.map((line, of) => data[of + 1].findLast((value) => value !== null) ?? null);
    const isNow = isLive() && lines.some((line, of) => data[of + 1].at(-1) !== null);
    const isPointed = data[0][at] !== undefined;
    const values = isPointed ? lines.map((line, of) => data[of + 1][at]) : newest;
    if (newest.every((value) => value === null)) put(caption, "no values yet");
    else put(caption, el("span", {}, isPointed ? moment(data[0][at]) : isNow ? "now" : "last"), lines.map((line, of) => [" ", el("span", { class: "keep" },
      lines.length > 1 && [el("span", { class: `stroke s${of}`, "aria-hidden": "true" }), `${line.name} `], number(values[of]), values[of] !== null && unit())]));
  };
  const tell = () => {
    const rows = data[0].map((at, of) => ({ at, values: lines.map((line, one) => data[one + 1][of]) })).filter((row) => row.values.some((value) => value !== null));
    const shown = thinned(rows, MOST_TOLD);
    put(words, shown.length < rows.length ? `Values as a table (${shown.length} of ${rows.length} rows, over the whole time)` : "Values as a table");
    told.fill(shown.reverse());
  };
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const resolved = el("span");
    document.body.append(resolved);
    const of = (name) => { resolved.style.color = style.getPropertyValue(name); return getComputedStyle(resolved).color; };
    const found = { soft: of("--soft"), line: of("--line") };
    resolved.remove();
    return found;
  };
  const make = () => {
    const { soft, line } = colours();
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(200, place.clientWidth || 320),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      hooks: { setCursor: [(u) => say(u.cursor.idx)] },
      scales: { x: { time: true }, y: { range: (u, low, high) => (low === null ? [0, 1] : isFromZero ? [0, (high > 0 ? high : 1) * 1.1] : padded(low, high)) } },
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
    data = [rows.map((row) => row[0]), ...[...lines, ...lows].map((line) => rows.map((row) => row[line.column]))];
    isLong = rows.length > 1 && rows.at(-1)[0] - rows[0][0] > DAY / 2;
    if (plot) plot.setData(data); else make();
    say(plot.cursor.idx);
    tell();
  };
  const resized = new ResizeObserver(() => { if (plot && place.clientWidth) plot.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT }); });
  resized.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const recolour = () => { if (plot) make(); };
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
