// One job: what it is, how it went, who works on it, what was reported.

import { follow } from "./api.js";
import { changeTools } from "./changes.js";
import { chart } from "./chart.js";
import { el, facts, noticeWords, put, state, table, time } from "./dom.js";
import { ago, began, count, isLate, lastStep, number, seconds, sum } from "./format.js";
import { logs } from "./logs.js";

const MOST_ROWS = 2000;
const SPENT = { training: 6, waiting: 4, rendezvous: 0, restart: 1, rollback: 2, stalled: 3 };
const SPENT_WORDS = {
  training: "trains", waiting: "waits for workers", rendezvous: "workers meet", restart: "from the new world to its first step",
  rollback: "repeats steps done before", stalled: "no steps, though the world stands",
};
const PHASES = {
  notice: "until workers that left were notified", detect: "until the loss was noticed", pause: "pause before a restart", drain: "workers save and stop",
  round: "at the rendezvous", start: "until all processes ran", firstStep: "until the first step",
};

export function showJob(main, session, wanted, live, refuse) {
  let page;
  let history = { columns: [], rows: [] };
  const head = el("div");
  const top = el("div");
  const told = el("div");
  const tools = changeTools(session, wanted);
  const notices = el("div");
  const isLive = () => !(page?.job.isOver || page?.job.isSuspended);
  const charts = [
    chart({ isLive, title: "Workers", steps: true, lines: [{ name: "in the world", column: 1, least: 7 }, { name: "wanted", column: 2 }] }),
    chart({ isLive, title: "Speed", lines: [{ name: "speed", column: 5 }], isFromZero: true, unit: () => ` ${page?.job.unit ?? ""}/s` }),
    chart({ isLive, title: "Loss", lines: [{ name: "loss", column: 6 }] }),
    chart({ isLive, title: "Generation", steps: true, lines: [{ name: "generation", column: 3 }] }),
  ];
  const rescales = table({
    caption: "Changes of the group, the newest first", none: "The group has not changed yet.", rows: [], key: (row) => row.at + row.reason,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.at, ago(row.at)) },
      { name: "Size", keep: true, cell: (row) => `${row.fromSize} → ${row.toSize}` },
      { name: "Cause", cell: (row) => row.cause },
      { name: "Took", number: true, cell: (row) => (sum(row.phases) ? (row.beganUnseen ? "≥ " : "") + seconds(sum(row.phases) / 1000) : "–") },
      { name: "How", cell: (row) => row.rung },
      { name: "Phases", cell: (row) => Object.entries(row.phases).filter(([, ms]) => ms).map(([name, ms]) => `${name} ${seconds(ms / 1000)}`).join(", ") },
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
      { name: "Restarts", number: true, cell: (row) => row.restarts },
      { name: "Node", cell: (row) => row.node },
      { name: "Notice", wide: true, cell: (row) => [row.leaving && `asked to leave (${row.leaving})${row.notices.length ? "; " : ""}`, noticeWords(row.notices)] },
    ],
  });
  const disrupted = table({
    caption: "Disruptions that the cluster announced", none: "", rows: [], key: (row) => row.signal + row.node + row.noticedAt,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.noticedAt, ago(row.noticedAt)) },
      { name: "Signal", cell: (row) => row.signal },
      { name: "Node", cell: (row) => row.node },
      { name: "Workers", number: true, cell: (row) => row.workers },
      { name: "Outcome", cell: (row) => row.outcome || "lasts" },
      { name: "Cost", number: true, cell: (row) => (row.pauseMs ? seconds(row.pauseMs / 1000) : "–") },
      { name: "Steps lost", number: true, cell: (row) => (row.stepsLost ? number(row.stepsLost) : "–") },
    ],
  });
  const log = logs(wanted, () => page);
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
  const disruptedBox = el("section", { "aria-label": "Disruptions" }, el("h2", {}, "Disruptions and what they cost"), disrupted.box);
  main.append(
    el("p", { class: "crumbs" }, el("a", { href: "#/" }, "Jobs"), ` / ${wanted.namespace}`), el("h1", {}, wanted.name), head, notices, top, told, tools.box,
    el("div", { class: "charts" }, charts.map((one) => one.box)),
    el("section", { "aria-label": "Changes" }, el("h2", {}, "Changes of the group"), rescales.box),
    el("section", { "aria-label": "Time" }, el("h2", {}, "Where the time went"), spent),
    el("section", { "aria-label": "Workers" }, el("h2", {}, "Workers"), workers.box), disruptedBox,
    el("section", { "aria-label": "Logs" }, el("h2", {}, "Logs"), log.box),
    el("section", { "aria-label": "Events" }, el("h2", {}, "Events"), events.box),
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
      ["World", number(job.world), `of ${job.wanted} wanted`],
      ["Allowed", job.least === null ? "fixed" : `${job.least}–${job.most}`],
      ["Generation", number(job.generation)],
      ["Step", lastStep(job)],
      ["Speed", ...(job.rate === null || isLate(job) ? ["–", ""] : [number(job.rate), `${job.unit}/s`])],
      ["Loss", number(job.loss)],
      ...(job.percent === null ? [] : [["Progress", `${job.percent} %`, job.remainingS === null || isLate(job) ? "" : `${seconds(job.remainingS)} left`]]),
      ["Restarts", number(job.restartCount), restartWords(page)],
    ]));
    rescales.fill(page.rescales);
    put(spent, timeSpent(page));
    workers.fill(page.workers);
    disruptedBox.hidden = !page.disruptions.length;
    disrupted.fill(page.disruptions);
    events.fill(page.events);
    log.know();
    const hidden = page.hidden.length ? [el("p", { class: "soft" }, `You may not list ${page.hidden.join(" and ")} in this namespace.`)] : [];
    const more = page.workerCount > page.workers.length ? [el("p", { class: "soft" }, `The first ${page.workers.length} of ${page.workerCount} workers are shown.`)] : [];
    put(told, hidden, more);
    tools.know(job);
  };
  const stop = follow({ of: "job", ...wanted }, {
    job: (found) => { page = found; draw(); },
    history: (found) => {
      const last = history.rows.at(-1)?.[0] ?? -Infinity;
      const isNew = !history.rows.length || !found.rows.length || found.rows[0][0] > last;
      history = { columns: found.columns, rows: isNew ? [...history.rows, ...found.rows].slice(-MOST_ROWS) : found.rows };
      for (const one of charts) one.draw(history);
    },
    gone: () => {
      page = undefined; // what was known stays as it was drawn last
      put(notices, el("p", { class: "failure", role: "status" }, "This job is not there any more."));
      tools.close();
      stop();
      live(null);
    },
    refused: refuse,
  }, live);
  const clock = setInterval(draw, 10000);
  return () => { stop(); clearInterval(clock); log.close(); for (const one of charts) one.close(); };
}

function restartWords(page) {
  const causes = Object.entries(page.job.restarts).filter(([, times]) => times).map(([cause, times]) => `${cause} ${times}`);
  if (!causes.length || !page.restartsCharged) return causes.join(", ");
  const [charged, allowed] = page.restartsCharged;
  return `${causes.join(", ")}; ${charged} charged, ${allowed} allowed`;
}

function timeSpent(page) {
  const all = sum(page.spentS);
  const parts = Object.entries(page.spentS).filter(([, s]) => s > 0).sort((a, b) => b[1] - a[1]);
  if (!all) return [el("p", { class: "soft" }, "Nothing is known: the workers of this job do not meet at our rendezvous server.")];
  const bar = el("div", { class: "bar", "aria-hidden": "true" });
  for (const [name, s] of parts) {
    const piece = el("span", { class: `c${SPENT[name] ?? 5}` });
    piece.style.width = `${(100 * s) / all}%`;
    bar.append(piece);
  }
  const rows = parts.map(([name, s]) => el("tr", {}, el("th", { scope: "row", class: "keep" }, el("span", { class: `key c${SPENT[name] ?? 5}` }), name),
    el("td", { class: "number" }, seconds(s)), el("td", { class: "number" }, `${((100 * s) / all).toFixed(1)} %`), el("td", { class: "wide soft" }, SPENT_WORDS[name] ?? "")));
  const lost = Object.entries(page.lostMs).filter(([, ms]) => ms > 0).sort((a, b) => b[1] - a[1]);
  const phases = lost.map(([name, ms]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, seconds(ms / 1000)), el("td", { class: "wide soft" }, PHASES[name] ?? "")));
  return [
    el("p", {}, `${((100 * (page.spentS.training ?? 0)) / all).toFixed(1)} % of ${seconds(all)} went into training.`), bar,
    el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "hide" }, "Time by what it was spent on"), el("tbody", {}, rows))),
    ...(lost.length ? [el("h3", {}, `Lost in ${count(page.rescales.length, "change")}, by phase`),
      el("div", { class: "scroll" }, el("table", {}, el("caption", { class: "hide" }, "Time lost by phase"), el("tbody", {}, phases)))] : []),
  ];
}
