// Two jobs next to each other: loss by step, speed by the time since each began, and the figures of both.

import { ask, jobPath } from "./api.js";
import { chart } from "./chart.js";
import { el, put, table } from "./dom.js";
import { number, seconds, sum } from "./format.js";

const EACH_MS = 5000;
const STEP = 4, RATE = 5, LOSS = 6; // columns of a job's history
const label = (job) => `${job.namespace}/${job.name} (${job.title ?? job.kind})`;
const value = (job) => [job.kind, job.namespace, job.name].join("/");
const named = (text) => { const [kind, namespace, name] = text.split("/"); return { kind, namespace, name }; };

export function showCompare(main, query, live, refuse) {
  const params = new URLSearchParams(query);
  const choices = ["a", "b"].map((id) => el("select", { id: `compare-${id}`, on: { change: () => { go(); } } }));
  const told = el("p", { class: "soft", role: "status" });
  const charts = el("div", { class: "charts" });
  const facts = el("section", { "aria-label": "Figures", hidden: true });
  main.append(el("h1", {}, "Compare two jobs"), el("div", { class: "tools" }, choices.map((choice, at) => el("label", {}, at ? "with " : "Job ", choice))), told, charts, facts);
  let drawn = [];
  let isOver = false;
  const go = () => { location.hash = `#/compare?${new URLSearchParams({ a: choices[0].value, b: choices[1].value })}`; };
  const offer = async () => {
    const jobs = await ask("/api/jobs");
    const wanted = [params.get("a") ?? (jobs[0] && value(jobs[0])), params.get("b") ?? (jobs[1] && value(jobs[1]))];
    choices.forEach((choice, at) => {
      choice.replaceChildren(...jobs.map((job) => el("option", { value: value(job) }, label(job))));
      if (wanted[at]) choice.value = wanted[at];
    });
    told.textContent = jobs.length < 2 ? "There are fewer than two jobs." : "";
    return jobs.length >= 2 && choices.every((choice) => choice.value);
  };
  const make = (names) => {
    const lines = names.map((name, at) => ({ name, column: at + 1 }));
    drawn = [
      chart({ title: "Loss by step", lines, canSmooth: true, isLive: () => false, x: { name: "Step", text: (step) => number(step) } }),
      chart({ title: "Speed by time since the beginning", lines, isFromZero: true, isLive: () => false, x: { name: "Time", text: (passed) => seconds(passed) } }),
    ];
    put(charts, drawn.map((one) => one.box));
  };
  const read = async () => {
    const pages = await Promise.all(choices.map(async (choice) => {
      const job = named(choice.value);
      return ask(`${jobPath(job)}?kind=${encodeURIComponent(job.kind)}`);
    }));
    if (isOver) return;
    if (!drawn.length) make(pages.map((page) => `${page.job.namespace}/${page.job.name}`));
    drawn[0].draw({ rows: joined(pages.map(({ history }) => points(history.rows, (row) => row[STEP], LOSS))) });
    drawn[1].draw({ rows: joined(pages.map(({ history }) => points(history.rows, (row) => row[0] - history.rows[0][0], RATE))) });
    facts.hidden = false;
    put(facts, el("h2", {}, "Figures"), figures(pages).box);
    live(true);
  };
  const again = async () => {
    if (document.hidden) return;
    try { await read(); } catch (trouble) { if (trouble.status === 401) refuse(trouble); else { told.textContent = trouble.message; live(trouble.status ? null : false); } }
  };
  let clock;
  offer().then((isReady) => { if (isReady && !isOver) { again(); clock = setInterval(again, EACH_MS); } }, (trouble) => { told.textContent = trouble.message; });
  return () => { isOver = true; clearInterval(clock); for (const one of drawn) one.close(); };
}

// A map from x to the newest value there: a job that went back writes a step again.
function points(rows, x, column) {
  const found = new Map();
  for (const row of rows) if (row[column] !== null && x(row) !== null) found.set(x(row), row[column]);
  return found;
}

function joined([a, b]) {
  return [...new Set([...a.keys(), ...b.keys()])].sort((one, other) => one - other).map((x) => [x, a.get(x) ?? null, b.get(x) ?? null]);
}

function figures(pages) {
  const all = (page) => sum(page.spentS);
  const rows = [
    ["State", (page) => page.job.state], ["Workers", (page) => number(page.job.world)], ["Step", (page) => number(page.job.step)],
    ["Loss", (page) => number(page.job.loss)], ["Least loss", (page) => number(least(page.history.rows, LOSS))],
    ["Speed", (page) => (page.job.rate === null ? "–" : `${number(page.job.rate)} ${page.job.unit}/s`)],
    ["Changes of the group", (page) => number(page.rescales.length)], ["Restarts", (page) => number(page.job.restartCount)],
    ["Time in training", (page) => (all(page) ? `${((100 * (page.spentS.training ?? 0)) / all(page)).toFixed(1)} % of ${seconds(all(page))}` : "–")],
  ];
  return table({
    caption: "Figures of both jobs", rows, key: ([name]) => name,
    columns: [{ name: "", cell: ([name]) => name }, ...pages.map((page, at) => ({ name: page.job.name, number: true, cell: ([, of]) => of(pages[at]) }))],
  });
}

const least = (rows, column) => rows.reduce((low, row) => (row[column] !== null && (low === null || row[column] < low) ? row[column] : low), null);

export const compareLink = (job) => `#/compare?${new URLSearchParams({ a: value(job) })}`;
