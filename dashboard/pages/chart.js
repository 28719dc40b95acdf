// Charts by uPlot, each with a table of its values for people who do not see the chart. The caption has the values under the pointer, else the
// newest values, and says which line is which.

import uPlot from "./uplot/uPlot.esm.js";
import { el, put, table } from "./dom.js";
import { number, thinned } from "./format.js";

const STROKES = ["#2f81f7", "#8a94a3"];
const OTHERS = ["#2f81f7", "#e3872d"];
const HEIGHT = 190;
const MOST_TOLD = 50;
const TICK_ROOM = 80;
const DAY = 86400;
const MARK_REACH = 8;

// lines: [{name, column, least}]; least: the column with the least value of the time that a row stands for. steps: values hold until the next
// row. isFromZero: the axis begins at 0, so that noise does not look like a change. isLive: whether the job goes on. marks: returns [{at, words}],
// drawn as vertical lines. canSmooth: offers a logarithmic axis and smoothing. x: {name, text(value)} of an axis that is not the time; rows of
// several jobs are then joined, and a line goes over the gaps.
export function chart({ title, lines, steps = false, isFromZero = steps, unit = () => "", isLive = () => true, marks = () => [], canSmooth = false, x = null }) {
  const place = el("div", { class: "plot", role: "img", "aria-label": `${title}: a chart; values over its whole range are in the table below it` });
  const strokes = x ? OTHERS : STROKES;
  let isLong = false;
  const moment = (at) => (x ? x.text(at) : isLong ? new Date(at * 1000).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short", hourCycle: "h23" }) : new Date(at * 1000).toLocaleTimeString(undefined, { hourCycle: "h23" }));
  const told = table({
    caption: title, rows: [], key: (row) => `${row.at} ${row.values}`, none: "no values yet",
    columns: [
      { name: x?.name ?? "Time", keep: true, cell: (row) => moment(row.at) },
      ...lines.map((line, at) => ({ name: line.name, number: true, cell: (row) => number(row.values[at]) })),
    ],
  });
  const lows = lines.flatMap((line, of) => (line.least === undefined ? [] : [{ of, column: line.least }]));
  const caption = el("p", { class: "soft caption" }, "no values yet");
  const words = el("summary", {}, "Values as a table");
  const details = el("details", {}, words, told.box);
  const isLog = el("input", { type: "checkbox", on: { change: () => again() } });
  const smoothing = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": `Smoothing of ${title}`, on: { input: () => again() } });
  const options = el("div", { class: "options soft", hidden: !canSmooth }, el("label", {}, isLog, " log scale"), el("label", {}, "smoothing ", smoothing));
  const box = el("section", {}, el("h3", {}, title), caption, options, place, details);
  let plot;
  let shown = { rows: [] };
  let data = [[]]; // by line as it was measured, then the least values
  // at: the row under the pointer, if any.
  const say = (at) => {
    const newest = lines.map((line, of) => data[of + 1].findLast((value) => value !== null && value !== undefined) ?? null);
    const isNow = isLive() && lines.some((line, of) => data[of + 1].at(-1) !== null);
    const isPointed = data[0][at] !== undefined;
    const values = isPointed ? lines.map((line, of) => data[of + 1][at] ?? null) : newest;
    if (newest.every((value) => value === null)) { put(caption, "no values yet"); return; }
    const mark = isPointed && pointedMark(at);
    put(caption, el("span", {}, isPointed ? moment(data[0][at]) : isNow ? "now" : "last"), lines.map((line, of) => [" ", el("span", { class: "keep" },
      lines.length > 1 && [el("span", { class: `stroke ${x ? "o" : "s"}${of}`, "aria-hidden": "true" }), `${line.name} `], number(values[of]), values[of] !== null && unit())]),
      mark && [" ", el("span", {}, mark.words)]);
  };
  const pointedMark = (at) => {
    const near = (mark) => Math.abs(plot.valToPos(mark.at, "x") - plot.valToPos(data[0][at], "x"));
    return marks().filter((mark) => near(mark) <= MARK_REACH).sort((a, b) => near(a) - near(b))[0];
  };
  const tell = () => {
    const rows = data[0].map((at, of) => ({ at, values: lines.map((line, one) => data[one + 1][of] ?? null) })).filter((row) => row.values.some((value) => value !== null));
    const some = thinned(rows, MOST_TOLD);
    put(words, some.length < rows.length ? `Values as a table (${some.length} of ${rows.length} rows, over the whole range)` : "Values as a table");
    told.fill(x ? some : some.reverse());
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
  // The lines as they are drawn: smoothed, with the measured values behind them, and without values that have no logarithm.
  const drawn = () => {
    const fit = (values) => (isLog.checked ? values.map((value) => (value > 0 ? value : null)) : values);
    const [at, ...rest] = data;
    const measured = rest.slice(0, lines.length).map(fit), weight = Number(smoothing.value);
    return [at, ...measured.map((values) => smoothed(values, weight)), ...rest.slice(lines.length), ...(canSmooth ? measured.map((values) => (weight ? values : values.map(() => null))) : [])];
  };
  const range = (u, low, high) => {
    if (low === null || low === undefined) return isLog.checked ? [0.1, 1] : [0, 1];
    if (isLog.checked) return uPlot.rangeLog(low, high, 10, false);
    const room = marks().length ? 1.25 : 1.1; // the labels of marks stand above the line
    return isFromZero ? [0, (high > 0 ? high : 1) * room] : padded(low, high, room - 1);
  };
  const make = () => {
    const { soft, line } = colours();
    const axis = { stroke: soft, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    const paths = steps ? uPlot.paths.stepped({ align: 1 }) : undefined;
    plot?.destroy();
    plot = new uPlot({
      width: Math.max(200, place.clientWidth || 320),
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      hooks: { setCursor: [(u) => say(u.cursor.idx)], draw: [(u) => drawMarks(u, marks(), soft)] },
      scales: { x: { time: !x }, y: { range, distr: isLog.checked ? 3 : 1 } },
      axes: [
        { ...axis, space: TICK_ROOM, values: (u, ticks, at, room, step) => ticks.map((tick) => (x ? x.text(tick) : clock(tick, step))) },
        { ...axis, size: (u, labels) => 24 + 7 * Math.max(3, ...(labels ?? []).map((label) => label?.length ?? 0)), values: (u, ticks) => ticks.map((tick) => (tick === null || (steps && !Number.isInteger(tick)) ? "" : number(tick, 3))) },
      ],
      series: [{}, ...lines.map((one, at) => ({
        label: one.name,
        stroke: strokes[at],
        width: x || at === 0 ? 2 : 1.5,
        dash: x || at === 0 ? undefined : [5, 4],
        spanGaps: Boolean(x),
        points: { show: false },
        paths,
      })), ...lows.map(() => ({ stroke: "transparent", points: { show: false }, paths })),
      ...(canSmooth ? lines.map((one, at) => ({ stroke: `${strokes[at]}55`, width: 1, spanGaps: Boolean(x), points: { show: false }, paths })) : [])],
      bands: lows.map((low, at) => ({ series: [1 + low.of, 1 + lines.length + at], fill: `${strokes[low.of]}40` })),
    }, drawn(), place);
  };
  const again = () => { if (plot) { make(); say(plot.cursor.idx); } };
  const draw = (history) => {
    shown = history;
    const rows = shown.rows;
    data = [rows.map((row) => row[0]), ...[...lines, ...lows].map((line) => rows.map((row) => row[line.column] ?? null))];
    isLong = rows.length > 1 && rows.at(-1)[0] - rows[0][0] > DAY / 2;
    if (plot) plot.setData(drawn()); else make();
    say(plot.cursor.idx);
    tell();
  };
  const redraw = () => plot?.redraw(false);
  const resized = new ResizeObserver(() => { if (plot && place.clientWidth) plot.setSize({ width: Math.max(200, place.clientWidth), height: HEIGHT }); });
  resized.observe(place);
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  scheme.addEventListener("change", again);
  return { box, draw, redraw, close: () => { resized.disconnect(); scheme.removeEventListener("change", again); plot?.destroy(); } };
}

// An exponential mean without the pull of its first value: each weight is 1 for a constant line.
function smoothed(values, weight) {
  if (!weight) return values;
  let mean = 0, known = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = weight * mean + (1 - weight) * value;
    known = weight * known + (1 - weight);
    return mean / known;
  });
}

// A label that would overlap the one before it is left out; the caption has its words under the pointer.
function drawMarks(u, marks, colour) {
  const { ctx, bbox } = u, scale = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.lineWidth = scale;
  ctx.font = `${11 * scale}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  let free = -Infinity;
  for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
    const left = u.valToPos(mark.at, "x", true);
    if (!(left >= bbox.left && left <= bbox.left + bbox.width)) continue;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(left, bbox.top);
    ctx.lineTo(left, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(mark.label).width;
    if (left < free || left + width + 4 * scale > bbox.left + bbox.width) continue;
    ctx.fillText(mark.label, left + 3 * scale, bbox.top + 11 * scale);
    free = left + width + 10 * scale;
  }
  ctx.restore();
}

const padded = (low, high, part) => { const size = high - low || Math.abs(high) || 1; return [low >= 0 ? Math.max(0, low - size * 0.1) : low - size * 0.1, high + size * part]; };

// The label of a tick; step: seconds from tick to tick.
const clock = (at, step) => {
  const date = new Date(at * 1000);
  if (step >= DAY) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) });
};
