// One job. Loss, speed and the log come first, then the workers, then the cost of every change.

import { changeTools } from "./changes.js";
import { ask, follow, jobPath } from "./api.js";
import { chart } from "./chart.js";
import { compareLink } from "./compare.js";
import { definition } from "./definition.js";
import { el, facts, noticeWords, put, state, table, time } from "./dom.js";
import { ago, began, bytes, count, isLate, number, seconds, sum } from "./format.js";
import { logs } from "./logs.js";

const MOST_ROWS = 2000;
const USAGE_MS = 10000;
const SPENT = { training: 6, waiting: 4, rendezvous: 0, restart: 1, rollback: 2, stalled: 3 };
const SPENT_WORDS = {
  training: ["training", "steps are made"], waiting: ["waiting", "too few workers are there"], rendezvous: ["meeting", "workers meet at the rendezvous"],
  restart: ["starting", "from the new group to its first step"], rollback: ["repeating", "steps that were done before"],
  stalled: ["no steps", "the workers are there, but no step comes"],
};
const PHASES = {
  notice: ["notify", "until the workers that left were notified"], detect: ["notice the loss", "until the loss was noticed"],
  pause: ["pause", "before a group that keeps failing starts again"], drain: ["save and stop", "until the workers had saved and stopped"],
  round: ["meet", "at the rendezvous"], start: ["start", "until all processes ran"], firstStep: ["first step", "until the first step"],
};
const CAUSES = {
  start: "start", plan: "new size", disruption: "disruption", collateral: "peer was lost", user: "program failed", outOfMemory: "out of memory", hang: "hang",
};
// Events about the ordinary life of a pod. A box shows them.
const ROUTINE = new Set(["Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulCreatePod", "SuccessfulCreateService"]);

export function showJob(main, session, wanted, live, refuse) {
  let page;
  let history = { columns: [], rows: [] };
  const head = el("div");
  const top = el("div");
  const told = el("div");
  const tools = changeTools(session, wanted);
  const notices = el("div");
  const isLive = () => !(page?.job.isOver || page?.job.isSuspended);
  const marks = () => (page?.rescales ?? []).filter((row) => row.fromSize).map((row) => ({
    at: Date.parse(row.at) / 1000, label: `${row.fromSize}→${row.toSize} ${causeWord(row)}`, words: `${row.fromSize} → ${row.toSize} workers: ${row.reason || causeWord(row)}`,
  }));
  const charts = [
    chart({ isLive, marks, title: "Loss", lines: [{ name: "loss", column: 6 }], canSmooth: true }),
    chart({ isLive, marks, title: "Speed", lines: [{ name: "speed", column: 5 }], isFromZero: true, unit: () => ` ${page?.job.unit ?? ""}/s` }),
    chart({ isLive, marks, title: "Workers", steps: true, lines: [{ name: "training", column: 1, least: 7 }, { name: "asked for", column: 2 }] }),
  ];
  const rescales = table({
    caption: "Changes of the group, the newest first", none: "The group has not changed yet.", rows: [], key: (row) => row.at + row.reason,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.at, ago(row.at)) },
      { name: "Size", keep: true, cell: (row) => `${row.fromSize} → ${row.toSize}` },
      { name: "Cause", cell: causeWord },
      { name: "Took", number: true, cell: (row) => (sum(row.phases) ? (row.beganUnseen ? "≥ " : "") + seconds(sum(row.phases) / 1000) : "–") },
      { name: "How", cell: (row) => row.rung },
      { name: "Phases", cell: (row) => Object.entries(row.phases).filter(([, ms]) => ms).map(([name, ms]) => `${PHASES[name]?.[0] ?? name} ${seconds(ms / 1000)}`).join(", ") },
      { name: "Steps", wide: true, cell: (row) => row.steps },
      { name: "Why", wide: true, cell: (row) => row.reason },
    ],
  });
  const spent = el("div");
  const workers = table({
    caption: "Workers", none: "There are no workers.", rows: [], key: (row) => row.pod,
    columns: [
      { name: "Pod", cell: (row) => row.pod },
      { name: "Rank", number: true, cell: (row) => (row.rank === null ? "–" : row.rank) },
      { name: "State", cell: (row) => state(row.state) },
      { name: "CPU", number: true, cell: (row) => ofReserved(used.pods[row.pod]?.cpus, row.cpus, (cpus) => number(cpus, 2)) },
      { name: "Memory", number: true, keep: true, cell: (row) => ofReserved(used.pods[row.pod]?.memory, row.memory, bytes) },
      { name: "GPUs", number: true, cell: (row) => row.gpus || "–" },
      { name: "Restarts", number: true, cell: (row) => row.restarts },
      { name: "Node", cell: (row) => row.node },
      { name: "Notice", wide: true, cell: (row) => [row.leaving && `asked to leave (${row.leaving})${row.notices.length ? "; " : ""}`, noticeWords(row.notices)] },
      { name: "Last failure", wide: true, cell: (row) => row.ended },
    ],
  });
  const disrupted = table({
    caption: "Disruptions that the cluster announced", none: "", rows: [], key: (row) => row.signal + row.node + row.noticedAt,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.noticedAt, ago(row.noticedAt)) },
      { name: "Signal", cell: (row) => row.signal },
      { name: "Node", cell: (row) => row.node },
      { name: "Workers", number: true, cell: (row) => row.workers },
      { name: "Outcome", cell: (row) => row.outcome || "goes on" },
      { name: "Cost", number: true, cell: (row) => (row.pauseMs ? seconds(row.pauseMs / 1000) : "–") },
      { name: "Steps lost", number: true, cell: (row) => (row.stepsLost ? number(row.stepsLost) : "–") },
    ],
  });
  const log = logs(wanted, () => page);
  const routine = el("input", { type: "checkbox", on: { change: () => draw() } });
  const events = table({
    caption: "Events", none: "No Events; the API server keeps them for about an hour.", rows: [], key: (row) => row.about + row.reason + row.message,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.at, ago(row.at)) },
      { name: "Type", cell: (row) => (row.type === "Warning" ? state("Warning") : row.type) },
      { name: "Reason", cell: (row) => row.reason },
      { name: "About", cell: (row) => row.about },
      { name: "Message", wide: true, cell: (row) => row.message + (row.count > 1 ? ` (${row.count} times)` : "") },
    ],
  });
  let used = { isMeasured: null, pods: {} };
  const measured = el("p", { class: "soft" });
  const measure = async () => {
    if (document.hidden || !page || !isLive()) return;
    try { used = await ask(`${jobPath(wanted)}/usage?kind=${encodeURIComponent(wanted.kind)}`); } catch { return; } // the next one may succeed
    if (!page) return; // the job was deleted meanwhile
    put(measured, used.isMeasured ? "" : "The usage of CPU and memory is not known: no metrics server measures it, or you may not read it. The columns show what workers reserve.");
    workers.fill(page.workers.map((row) => ({ ...row })));
  };
  const disruptedBox = el("section", { "aria-label": "Disruptions" }, el("h2", {}, "Disruptions and what they cost"), disrupted.box);
  main.append(
    el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Jobs"), ` / ${wanted.namespace}`, " · ", el("a", { href: compareLink(wanted) }, "compare")),
    el("h1", {}, wanted.name), head, notices, told, tools.box,
    el("div", { class: "charts" }, charts.slice(0, 2).map((one) => one.box)), top,
    el("section", { "aria-label": "Logs" }, el("h2", {}, "Logs"), log.box),
    el("section", { "aria-label": "Workers" }, el("h2", {}, "Workers"), workers.box, measured),
    el("div", { class: "charts" }, charts[2].box, el("section", { "aria-label": "Time" }, el("h2", {}, "Where the time went"), spent)),
    el("section", { "aria-label": "Changes" }, el("h2", {}, "Changes of the group"), rescales.box), disruptedBox,
    el("section", { "aria-label": "Events" }, el("h2", {}, "Events"), el("label", {}, routine, " Show routine Events of pods"), events.box),
    el("section", { "aria-label": "Definition" }, el("h2", {}, "Definition"), definition(wanted)),
  );

  const draw = () => {
    if (!page) return;
    const job = page.job;
    put(head, el("p", {}, state(job.state), ` ${job.title}`, job.created ? [" · ", time(job.created, `created ${ago(job.created)}`)] : []));
    // The list has the beginning of a message only.
    const failure = job.state === "Failed" ? (page.conditions.findLast((one) => one.type === "Failed")?.message ?? job.message) : "";
    put(notices, failure ? [el("p", { class: "failure" }, failure)] : [],
      [job.waitsFor && `Waits for ${job.waitsFor}${began(job)}`, !job.waitsFor && !failure && job.message, page.autoscaler && `Autoscaler: ${page.autoscaler}`]
        .filter(Boolean).map((words) => el("p", { class: "soft" }, words)));
    put(top, facts([
      ["Workers", job.world === null ? `${job.running}/${job.wanted}` : `${job.world}/${job.wanted}`, job.least === null ? "" : `${job.least}–${job.most} allowed`],
      ...(job.gpus ? [["GPUs", number(job.gpus)]] : []),
      ["Step", number(job.step), isLate(job) ? ago(job.steppedAt) : ""],
      ["Speed", ...(job.rate === null || isLate(job) ? ["–", ""] : [number(job.rate), `${job.unit}/s`])],
      ["Loss", number(job.loss)],
      ...(job.percent === null ? [] : [["Progress", `${job.percent} %`, job.remainingS === null || isLate(job) ? "" : `${seconds(job.remainingS)} left`]]),
      ["Restarts", number(job.restartCount), restartWords(page), "words"],
    ]));
    rescales.fill(page.rescales);
    put(spent, timeSpent(page));
    workers.fill(page.workers);
    disruptedBox.hidden = !page.disruptions.length;
    disrupted.fill(page.disruptions);
    events.fill(page.events.filter((row) => routine.checked || row.type === "Warning" || !ROUTINE.has(row.reason)));
    log.know();
    for (const one of charts) one.redraw();
    const hidden = page.hidden.length ? [el("p", { class: "soft" }, `You may not list ${page.hidden.join(" and ")} in this namespace.`)] : [];
    const more = page.workerCount > page.workers.length ? [el("p", { class: "soft" }, `The first ${page.workers.length} of ${page.workerCount} workers are shown.`)] : [];
    put(told, hidden, more);
    tools.know(job);
  };
  const stop = follow({ of: "job", ...wanted }, {
    job: (found) => { const isFirst = !page; page = found; draw(); if (isFirst) { log.begin(isLive()); measure(); } },
    history: (found) => {
      const last = history.rows.at(-1)?.[0] ?? -Infinity;
      const isNew = !history.rows.length || !found.rows.length || found.rows[0][0] > last;
      history = { columns: found.columns, rows: isNew ? [...history.rows, ...found.rows].slice(-MOST_ROWS) : found.rows };
      for (const one of charts) one.draw(history);
    },
    gone: () => {
      page = undefined; // the page stays as it was drawn last
      put(notices, el("p", { class: "failure", role: "status" }, "This job was deleted."));
      tools.close();
      stop();
      live(null);
    },
    refused: refuse,
  }, live);
  const clock = setInterval(draw, 10000);
  const measuring = setInterval(measure, USAGE_MS);
  return () => { stop(); clearInterval(clock); clearInterval(measuring); log.close(); for (const one of charts) one.close(); };
}

const causeWord = (row) => CAUSES[row.cause] ?? row.cause;

// The usage next to the reservation, as far as they are known.
function ofReserved(usage, reserved, text) {
  if (usage === undefined) return reserved ? `${text(reserved)} reserved` : "–";
  return reserved ? `${text(usage)} of ${text(reserved)}` : text(usage);
}

function restartWords(page) {
  const causes = Object.entries(page.job.restarts).filter(([, times]) => times).map(([cause, times]) => `${CAUSES[cause] ?? cause} ${times}`);
  if (!causes.length || !page.restartsCharged) return causes.join(", ");
  const [charged, allowed] = page.restartsCharged;
  return `${causes.join(", ")}; ${charged} of ${allowed} allowed restarts used`;
}

function timeSpent(page) {
  const all = sum(page.spentS);
  const parts = Object.entries(page.spentS).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  if (!all) return [el("p", { class: "soft" }, "Nothing is known, because the workers of this job do not meet at our rendezvous server.")];
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  for (const [name, s] of parts) {
    const piece = el("span", { class: `c${SPENT[name] ?? 5}` });
    piece.style.width = `${(100 * s) / all}%`;
    bar.append(piece);
  }
  const rows = parts.map(([name, s]) => el("tr", {}, el("th", { scope: "row", class: "keep" }, el("span", { class: `key c${SPENT[name] ?? 5}` }), SPENT_WORDS[name]?.[0] ?? name),
    el("td", { class: "number" }, seconds(s)), el("td", { class: "number" }, `${((100 * s) / all).toFixed(1)} %`), el("td", { class: "wide soft" }, SPENT_WORDS[name]?.[1] ?? "")));
  const lost = Object.entries(page.lostMs).filter(([, ms]) => ms > 0).sort((a, b) => b[1] - a[1]);
  const phases = lost.map(([name, ms]) => el("tr", {}, el("th", { scope: "row" }, PHASES[name]?.[0] ?? name), el("td", { class: "number" }, seconds(ms / 1000)), el("td", { class: "wide soft" }, PHASES[name]?.[1] ?? "")));
  return [
    el("p", {}, `${((100 * (page.spentS.training ?? 0)) / all).toFixed(1)} % of ${seconds(all)} went into training.`), bar,
    el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "hide" }, "Time by what it was spent on"), el("tbody", {}, rows))),
    ...(lost.length ? [el("h3", {}, `Lost in ${count(page.rescales.length, "change")}`),
      el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "hide" }, "Time lost by phase"), el("tbody", {}, phases)))] : []),
  ];
}
