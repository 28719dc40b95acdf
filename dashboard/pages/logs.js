// The log of one worker. The page keeps the last lines, and the server bounds how much it sends.

import { jobPath } from "./api.js";
import { el, isBad } from "./dom.js";

const MOST_LINES = 2000;
const FIRST_LINES = 200;

// page: returns the job's page as it is now. Until somebody chooses a worker, it is the worker that failed the job, else rank 0.
export function logs(job, page) {
  const choice = el("select", { id: "log-of" });
  const follows = el("input", { type: "checkbox", id: "log-follows", checked: true });
  const button = el("button", { type: "button" }, "Show again");
  const out = el("pre", { tabindex: "0", hidden: true, "aria-label": "Log" });
  const told = el("p", { class: "soft", role: "status" });
  const box = el("div", {}, el("div", { class: "tools" }, el("label", { for: "log-of" }, "Worker"), choice, el("label", {}, follows, " follow"), button), told, out);
  let under = null;
  let lines = [];
  let waits = false;
  let isChosen = false;
  let asked = null;
  let paused = null;
  let hasBegun = false;

  const know = () => {
    const found = page().workers.map((worker) => [worker.pod,
      [worker.rank === null ? "" : `rank ${worker.rank}`, worker.pod, isBad(worker.state) ? worker.state : ""].filter(Boolean).join(" · ")]);
    found.sort((a, b) => a[1].localeCompare(b[1], "en", { numeric: true }));
    const known = JSON.stringify([found, page().failed]);
    if (known === choice.dataset.found) return;
    const before = isChosen ? choice.value : page().failed || choice.value;
    choice.dataset.found = known;
    choice.replaceChildren(...found.map(([pod, words]) => el("option", { value: pod }, words)));
    if (found.some(([pod]) => pod === before)) choice.value = before;
    button.disabled = !found.length;
    if (hasBegun && !asked) showChosen();
  };
  const draw = () => {
    waits = false;
    const isAtEnd = out.scrollTop + out.clientHeight >= out.scrollHeight - 20;
    out.textContent = lines.join("\n");
    if (isAtEnd) out.scrollTop = out.scrollHeight;
  };
  const take = (text) => {
    const parts = text.split("\n");
    if (lines.length) parts[0] = lines.pop() + parts[0];
    lines = [...lines, ...parts].slice(-MOST_LINES);
    if (!waits) { waits = true; requestAnimationFrame(draw); }
  };
  const close = () => { under?.abort(); under = null; button.textContent = "Show again"; };
  const show = async (wanted) => {
    asked = wanted;
    paused = null;
    const mine = (under = new AbortController());
    button.textContent = "Stop";
    out.hidden = false;
    out.textContent = "";
    told.textContent = "";
    lines = [];
    const query = new URLSearchParams({ ...wanted, kind: job.kind });
    try {
      const response = await fetch(`${jobPath(job)}/logs?${query}`, { signal: mine.signal, credentials: "same-origin" });
      if (!response.ok) throw new Error((await response.text()).slice(0, 500));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) take(part.value);
      told.textContent = "The log ends here.";
    } catch (error) {
      if (!mine.signal.aborted) told.textContent = error.message;
    }
    if (under === mine) close();
  };
  const showChosen = () => { close(); if (choice.value) show({ pod: choice.value, follow: follows.checked, lines: FIRST_LINES }); };
  choice.addEventListener("change", () => { isChosen = true; showChosen(); });
  button.addEventListener("click", () => { if (under) close(); else showChosen(); });
  // A hidden page holds no connection. When somebody sees it again, it gets as many lines as it would have kept.
  const look = () => {
    if (document.hidden && under) { paused = asked; close(); } else if (!document.hidden && paused) show({ ...paused, lines: MOST_LINES });
  };
  document.addEventListener("visibilitychange", look);
  const begin = (isLive) => {
    hasBegun = true;
    follows.checked = isLive;
    if (!choice.value) told.textContent = "There are no workers yet whose log could be shown.";
    showChosen();
  };
  return { box, know, begin, close: () => { close(); document.removeEventListener("visibilitychange", look); } };
}
