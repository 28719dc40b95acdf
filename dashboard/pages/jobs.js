// The list of jobs.

import { follow } from "./api.js";
import { el, state, table, time } from "./dom.js";
import { ago, began, count, isLate, lastStep, number, sum } from "./format.js";

export const jobLink = (job) => `#/jobs/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}?kind=${encodeURIComponent(job.kind)}`;
const NAMES = new Intl.Collator("en", { numeric: true });
const MOST_SHOWN = 500;

// Why the job is as it is: the reason of a failure, or the thing that it waits for.
const why = (job) => {
  if (job.state === "Failed") return el("span", { class: "bad" }, job.message);
  if (job.waitsFor) return `waits for ${job.waitsFor}${began(job)}`;
  return job.notices ? `${count(job.notices, "worker")} given notice` : job.isSuspended ? "suspended" : "";
};

export function showJobs(main, session, live, refuse) {
  const jobs = new Map();
  const search = el("input", { id: "search", type: "search", placeholder: "Name, namespace, kind, state or failure", "aria-label": "Find jobs" });
  const over = el("input", { id: "over", type: "checkbox", checked: true });
  const told = el("p", { class: "soft" });
  const shown = table({
    caption: "Jobs",
    none: "There are no jobs. `elastic run examples/pytorch-elastic/job.yaml` starts one.",
    rows: [],
    key: (job) => job.uid,
    columns: [
      { name: "Job", by: (job) => job.name, cell: (job) => el("a", { href: jobLink(job) }, job.name) },
      { name: "State", by: (job) => job.state, cell: (job) => state(job.state) },
      { name: "Why", wide: true, cell: why },
      { name: "Workers", number: true, by: (job) => job.world, cell: (job) => (job.world === null ? "–" : `${job.world}/${job.wanted}`) },
      { name: "Min–max", number: true, cell: (job) => (job.least === null ? "fixed" : `${job.least}–${job.most}`) },
      { name: "GPUs", number: true, by: (job) => job.gpus, cell: (job) => job.gpus || "–" },
      { name: "Step", number: true, by: (job) => job.step, cell: (job) => lastStep(job) },
      { name: "Speed", number: true, by: (job) => job.rate, cell: (job) => (job.rate === null || isLate(job) ? "–" : `${number(job.rate)} ${job.unit}/s`) },
      { name: "Loss", number: true, by: (job) => job.loss, cell: (job) => number(job.loss) },
      { name: "Restarts", number: true, by: (job) => job.restartCount, cell: (job) => number(job.restartCount) },
      { name: "Age", keep: true, by: (job) => -Date.parse(job.created), cell: (job) => time(job.created, ago(job.created).replace(" ago", "")) },
      { name: "Namespace", by: (job) => job.namespace, cell: (job) => job.namespace },
      { name: "Kind", by: (job) => job.title, cell: (job) => job.title },
    ],
  });

  let drawn = false;
  const draw = () => {
    drawn = false;
    const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...jobs.values()].sort((a, b) => NAMES.compare(a.namespace, b.namespace) || NAMES.compare(a.name, b.name) || NAMES.compare(a.kind, b.kind));
    const found = all.filter((job) => (over.checked || !job.isOver)
      && wanted.every((word) => `${job.name} ${job.namespace} ${job.title} ${job.state} ${job.state === "Failed" ? job.message : ""}`.toLowerCase().includes(word)));
    const running = all.filter((job) => job.state === "Running");
    const gpus = sum(all.map((job) => job.gpus));
    told.textContent = `${count(all.length, "job")}, ${running.length} running with ${count(sum(running.map((job) => job.world ?? 0)), "worker")}${gpus ? ` on ${count(gpus, "GPU")}` : ""}`
      + (found.length === all.length ? "" : `; ${found.length} found`) + (found.length > MOST_SHOWN ? `, the first ${MOST_SHOWN} shown` : "");
    shown.fill(found.slice(0, MOST_SHOWN));
  };
  // The table is drawn at most once a frame, however many messages come.
  const later = () => { if (!drawn) { drawn = true; requestAnimationFrame(draw); } };
  search.addEventListener("input", later);
  over.addEventListener("change", later);
  main.append(el("h1", {}, "Jobs"), told, el("div", { class: "tools" }, search, el("label", {}, over, " Show finished jobs")), el("section", {}, shown.box),
    el("p", { class: "soft" }, el("a", { href: "#/compare" }, "Compare two jobs")));
  const clock = setInterval(later, 10000);
  const stop = follow({ of: "jobs" }, {
    jobs: (found) => { jobs.clear(); for (const job of found) jobs.set(job.uid, job); later(); },
    changed: (news) => { for (const job of news.jobs) jobs.set(job.uid, job); for (const uid of news.gone) jobs.delete(uid); later(); },
    refused: refuse,
  }, live);
  return () => { stop(); clearInterval(clock); };
}
