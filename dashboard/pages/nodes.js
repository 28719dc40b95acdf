// The cluster's nodes: the workers there, the notices that the nodes were given, and the cost of earlier notices.

import { ask, follow } from "./api.js";
import { reclaimButton } from "./changes.js";
import { el, noticeWords, state, table, time } from "./dom.js";
import { ago, count, memory, number, seconds, sum } from "./format.js";
import { jobLink } from "./jobs.js";

const ASKED_MS = 15000; // after a reclaim, the notice of the node is seen within this time
const GOING = ["leave", "gone"];

export function showNodes(main, session, live, refuse) {
  const asked = new Map();
  const isGiven = (node) => node.notices.some((one) => GOING.includes(one.meaning)) || asked.get(node.name) > Date.now();
  const answer = el("p", { class: "soft", role: "status" });
  const reclaim = async (node) => {
    try {
      answer.textContent = (await ask(`/api/nodes/${encodeURIComponent(node.name)}/reclaim`, {})).done;
      asked.set(node.name, Date.now() + ASKED_MS);
    } catch (error) {
      answer.textContent = error.message;
    }
    nodes = nodes.map((one) => ({ ...one })); // so that the table draws them again
    draw();
  };
  const told = el("p", { class: "soft" });
  const shown = table({
    caption: "Nodes", none: "There are no nodes.", rows: [], key: (node) => node.name,
    columns: [
      { name: "Node", cell: (node) => node.name },
      { name: "State", cell: (node) => el("span", {}, state(node.isReady ? "Ready" : "NotReady"), node.isCordoned ? " cordoned" : "") },
      { name: "Kind", cell: (node) => [node.isSpot ? "spot" : "on demand", node.group].filter(Boolean).join(", ") },
      { name: "CPU", number: true, cell: (node) => node.capacity.cpu ?? "–" },
      { name: "Memory", number: true, keep: true, cell: (node) => memory(node.capacity.memory) || "–" },
      { name: "GPUs", number: true, cell: (node) => (gpusOf(node) ? `${node.gpusUsed} of ${gpusOf(node)} used` : "0") },
      { name: "Workers", cell: (node) => el("span", {}, byJob(node.occupants).map(([job, pods], at) => [at ? ", " : "", el("a", { href: jobLink(job) }, `${job.namespace}/${job.name}`), ` (${pods})`])) },
      { name: "Notice", wide: true, cell: (node) => noticeWords(node.notices) },
      ...(session.reclaimSeconds ? [{ name: "Change", cell: (node) => reclaimButton(session, node, isGiven(node), reclaim) }] : []),
    ],
  });
  const cost = table({
    caption: "Disruptions and what they cost", none: "No disruptions.", rows: [],
    key: (row) => row.namespace + row.job + row.signal + row.node + row.noticedAt,
    columns: [
      { name: "When", keep: true, cell: (row) => time(row.noticedAt, ago(row.noticedAt)) },
      { name: "Node", cell: (row) => row.node },
      { name: "Signal", cell: (row) => row.signal },
      { name: "Job", cell: (row) => el("a", { href: jobLink({ namespace: row.namespace, name: row.job, kind: row.kind }) }, `${row.namespace}/${row.job}`) },
      { name: "Workers", number: true, cell: (row) => row.workers },
      { name: "Outcome", cell: (row) => row.outcome || "goes on" },
      { name: "Cost", number: true, cell: (row) => (row.pauseMs ? seconds(row.pauseMs / 1000) : "–") },
      { name: "Steps lost", number: true, cell: (row) => (row.stepsLost ? number(row.stepsLost) : "–") },
    ],
  });
  const boxes = [el("section", { "aria-label": "Nodes" }, shown.box),
    el("section", { "aria-label": "Disruptions" }, el("h2", {}, "Disruptions and what they cost"), cost.box)];
  main.append(el("h1", {}, "Nodes"), told, answer, ...boxes);
  let nodes = [];
  let disruptions = [];
  let mayList = true;
  const draw = () => {
    if (!mayList) { told.textContent = "You may not list nodes: this needs the right to list them in the whole cluster."; return; }
    const given = nodes.filter((node) => node.notices.length).length;
    told.textContent = `${count(nodes.length, "node")}, ${nodes.filter((node) => node.isSpot).length} of them spot`
      + (given ? `; ${given === 1 ? "one was" : `${given} were`} given notice` : "")
      + (sum(nodes.map(gpusOf)) ? `; ${sum(nodes.map((node) => node.gpusUsed))} of ${count(sum(nodes.map(gpusOf)), "GPU")} used by jobs that you may see` : "");
    shown.fill(nodes);
    cost.fill(disruptions);
    if (disruptions.length) told.textContent += `; disruptions took ${seconds(sum(disruptions.map((row) => row.pauseMs)) / 1000)} of training`;
  };
  const stop = follow({ of: "nodes" }, {
    nodes: (found) => {
      mayList = found !== null;
      for (const box of boxes) box.hidden = !mayList;
      if (mayList) ({ nodes, disruptions } = found);
      draw();
    },
    refused: refuse,
  }, live);
  const clock = setInterval(draw, 10000);
  return () => { stop(); clearInterval(clock); };
}

const gpusOf = (node) => Number(node.capacity["nvidia.com/gpu"] ?? 0) || 0;

function byJob(occupants) {
  const found = new Map();
  for (const one of occupants) {
    const key = `${one.kind}/${one.namespace}/${one.job}`;
    const known = found.get(key) ?? [{ namespace: one.namespace, name: one.job, kind: one.kind }, 0];
    known[1] += 1;
    found.set(key, known);
  }
  return [...found.values()];
}
