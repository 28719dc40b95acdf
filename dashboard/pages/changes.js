// What a user may change, where the dashboard was started so. Each change is confirmed first.

import { ask, jobPath } from "./api.js";
import { el } from "./dom.js";

export function confirm(title, words, button) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = words;
  document.getElementById("confirm-go").textContent = button;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "go"), { once: true }));
}

// What was said last, and what stands in the field, outlive the drawing of the page.
const kept = { job: "", words: "", wanted: null, box: null };

export function changeTools(session, job) {
  if (!session.allowsChanges || job.isOver) return [];
  if (kept.job === job.uid && kept.box && kept.suspended === job.isSuspended) return [kept.box];
  const words = el("span", { class: "soft", role: "status" });
  const act = async (path, body) => {
    try {
      words.textContent = (await ask(`${jobPath(job)}/${path}?kind=${encodeURIComponent(job.kind)}`, body)).done;
    } catch (error) {
      words.textContent = error.message;
    }
  };
  const field = el("input", { id: "scale-to", type: "number", min: job.least ?? 0, max: job.most ?? "", value: job.wanted });
  const scale = el("button", {
    type: "button",
    on: { click: async () => { if (await confirm("Scale", `${job.name} is to have ${field.value} workers.`, "Scale")) act("scale", { workers: Number(field.value) }); } },
  }, "Scale");
  const pause = el("button", {
    type: "button",
    on: { click: async () => {
      const isEnd = !job.isSuspended;
      const what = isEnd ? `${job.name} stops, and its workers end. It can be resumed.` : `${job.name} starts again.`;
      if (await confirm(isEnd ? "Suspend" : "Resume", what, isEnd ? "Suspend" : "Resume")) act("suspend", { suspended: isEnd });
    } },
  }, job.isSuspended ? "Resume" : "Suspend");
  const box = el("div", { class: "tools", role: "group", "aria-label": "Changes" }, job.least === null ? [] : [el("label", { for: "scale-to" }, "Workers"), field, scale], pause, words);
  Object.assign(kept, { job: job.uid, suspended: job.isSuspended, box });
  return [box];
}

export function reclaimButton(node) {
  return el("button", {
    type: "button",
    on: { click: async (event) => {
      const button = event.currentTarget;
      if (!await confirm("Reclaim", `${node.name} is given notice as by a spot market, and is lost after it.`, "Reclaim")) return;
      try {
        await ask(`/api/nodes/${encodeURIComponent(node.name)}/reclaim`, {});
        button.disabled = true;
        button.textContent = "Given notice";
      } catch (error) {
        button.textContent = error.message;
      }
    } },
  }, "Reclaim");
}
