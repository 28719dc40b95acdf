// What a user may change, where the dashboard was started so. Each change is confirmed first.

import { ask, jobPath } from "./api.js";
import { el } from "./dom.js";
import { command } from "./format.js";

export function confirm(title, words, button) {
  const dialog = document.getElementById("confirm");
  document.getElementById("confirm-title").textContent = title;
  document.getElementById("confirm-text").textContent = words;
  document.getElementById("confirm-go").textContent = button;
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "go"), { once: true }));
}

// wanted: namespace and name of the job. `know` is told how the job is now.
export function changeTools(session, wanted) {
  let job = null;
  const words = el("span", { class: "soft", role: "status" });
  const act = async (path, body) => {
    try {
      words.textContent = (await ask(`${jobPath(wanted)}/${path}?kind=${encodeURIComponent(job.kind)}`, body)).done;
    } catch (error) {
      words.textContent = error.message;
    }
  };
  const field = el("input", { id: "scale-to", type: "number" });
  const scale = el("button", {
    type: "button",
    on: { click: async () => { if (await confirm("Scale", `${wanted.name} is to have ${field.value} ${field.value === "1" ? "worker" : "workers"}.`, "Scale")) act("scale", { workers: Number(field.value) }); } },
  }, "Scale");
  const pause = el("button", {
    type: "button",
    on: { click: async () => {
      const isEnd = !job.isSuspended;
      const what = isEnd ? `${wanted.name} stops, and its workers end. It can be resumed.` : `${wanted.name} starts again.`;
      if (await confirm(isEnd ? "Suspend" : "Resume", what, isEnd ? "Suspend" : "Resume")) act("suspend", { suspended: isEnd });
    } },
  });
  const sizes = el("div", { class: "tools" }, el("label", { for: "scale-to" }, "Workers"), field, scale);
  const box = el("div", { class: "tools", role: "group", "aria-label": "Changes", hidden: true }, sizes, pause, words);
  const know = (found) => {
    job = found;
    box.hidden = !session.allowsChanges || job.isOver;
    sizes.hidden = job.least === null;
    for (const [name, value] of Object.entries({ min: job.least ?? 0, max: job.most ?? "" })) field.setAttribute(name, value);
    // The attribute shows until somebody types; what they typed stays, and what they have selected to type over.
    if (document.activeElement !== field) field.setAttribute("value", job.wanted);
    pause.textContent = job.isSuspended ? "Resume" : "Suspend";
  };
  return { box, know, close: () => { box.hidden = true; } };
}

// isGiven: it was given notice, and there is nothing to ask for. reclaim: gets the node once a person means it.
export function reclaimButton(session, node, isGiven, reclaim) {
  // Disabled it could not keep the focus.
  return el("button", {
    type: "button", "aria-disabled": isGiven && "true", "aria-label": `${isGiven ? "Given notice:" : "Reclaim"} ${node.name}`,
    on: { click: async (event) => {
      if (event.currentTarget.hasAttribute("aria-disabled")) return;
      const what = `${node.name} is given notice as by a spot market. It is lost ${session.reclaimSeconds} s later, with all that runs there, and stays away until`;
      if (await confirm("Reclaim", `${what}: ${command(session, `node add ${node.name}`)}`, "Reclaim")) reclaim(node);
    } },
  }, isGiven ? "Given notice" : "Reclaim");
}
