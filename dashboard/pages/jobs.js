// The list of jobs.

import { follow } from "./api.js";
import { el, state, table, time } from "./dom.js";
import { ago, began, count, isLate, lastStep, number, sum } from "./format.js";

export const jobLink = (job) => `#/jobs/${encodeURIComponent(job.namespace)}/${encodeURIComponent(job.name)}?kind=${encodeURIComponent(job.kind)}`;
const NAMES = new Intl.Collator("en", { numeric: true });
const MOST_SHOWN = 500;

export function showJobs(main, session, live, refuse) {
  const jobs = new Map();
  const search = el("input", { id: "search", type: "search", placeholder: "Name, namespace, kind or state", "aria-label": "Find jobs" });
  const over = el("input", { id: "over", type: "checkbox", checked: true });
  const told = el("p", { class: "soft" });
  const shown = table({
    caption: "Jobs",
    none: "There are no jobs. `elastic run examples/pytorch-elastic/job.yaml` starts one.",
    rows: [],
    key: (job) => job.uid,
    columns: [
      { name: "Job", cell: (job) => el("a", { href: jobLink(job) }, job.name) },
      { name: "State", cell: (job) => state(job.state) },
      { name: "World", number: true, cell: (job) => (job.world === null ? "–" : `${job.world} of ${job.wanted}`) },
      { name: "Allowed", number: true, cell: (job) => (job.least === null ? "fixed" : `${job.least}–${job.most}`) },
      { name: "Step", number: true, cell: (job) => lastStep(job) },
      { name: "Speed", number: true, cell: (job) => (job.rate === null || isLate(job) ? "–" : `${number(job.rate)} ${job.unit}/s`) },
      { name: "Loss", number: true, cell: (job) => number(job.loss) },
      { name: "Restarts", number: true, cell: (job) => number(job.restartCount) },
      { name: "Age", keep: true, cell: (job) => time(job.created, ago(job.created).replace(" ago", "")) },
      { name: "Namespace", cell: (job) => job.namespace },
      { name: "Kind", cell: (job) => job.title },
      { name: "Waits for", wide: true, cell: (job) => (job.waitsFor ? job.waitsFor + began(job) : "") || (job.notices ? `${count(job.notices, "worker")} given notice` : "") },
    ],
  });

  let drawn = false;
  const draw = () => {
    drawn = false;
    const wanted = search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...jobs.values()].sort((a, b) => NAMES.compare(a.namespace, b.namespace) || NAMES.compare(a.name, b.name) || NAMES.compare(a.kind, b.kind));
    const found = all.filter((job) => (over.checked || !job.isOver)
      && wanted.every((word) => `${job.name} ${job.namespace} ${job.title} ${job.state}`.toLowerCase().includes(word)));
    const running = all.filter((job) => job.state === "Running");
    told.textContent = `${count(all.length, "job")}, ${running.length} running with ${count(sum(running.map((job) => job.world ?? 0)), "worker")}`
      + (found.length === all.length ? "" : `; ${found.length} found`) + (found.length > MOST_SHOWN ? `, the first ${MOST_SHOWN} shown` : "");
    shown.fill(found.slice(0, MOST_SHOWN));
  };
  // However much comes in, the table is drawn at most once a frame.
  const later = () => { if (!drawn) { drawn = true; requestAnimationFrame(draw); } };
  search.addEventListener("input", later);
  over.addEventListener("change", later);
  main.append(el("h1", {}, "Jobs"), told, el("div", { class: "tools" }, search, el("label", {}, over, " also those that are over")), el("section", {}, shown.box));
  const clock = setInterval(later, 10000);
  const stop = follow({ of: "jobs" }, {
    jobs: (found) => { jobs.clear(); for (const job of found) jobs.set(job.uid, job); later(); },
    changed: (news) => { for (const job of news.jobs) jobs.set(job.uid, job); for (const uid of news.gone) jobs.delete(uid); later(); },
    refused: refuse,
  }, live);
  return () => { stop(); clearInterval(clock); };
}
