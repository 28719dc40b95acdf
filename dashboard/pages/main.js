// Show the page that the address names: #/, #/nodes, #/jobs/NAMESPACE/NAME?kind=KIND, #/compare, #/login. The heading of a new page gets the focus.

import { ask } from "./api.js";
import { el, tick } from "./dom.js";
import { showCompare } from "./compare.js";
import { showJob } from "./job.js";
import { showJobs } from "./jobs.js";
import { showLogin } from "./login.js";
import { showNodes } from "./nodes.js";

const main = document.getElementById("main");
const live = document.getElementById("live");
const logout = document.getElementById("logout");
let leave = () => {};
let turn = 0;

// isOn: null if this page follows nothing.
function setLive(isOn) {
  live.textContent = isOn === null ? "" : isOn ? "Live" : "Connection lost; trying again";
  live.className = isOn === false ? "off" : "";
}

function refuse(trouble) {
  if (trouble.status === 401) { location.hash = "#/login"; return; }
  leave();
  leave = () => {};
  setLive(null);
  main.replaceChildren(el("h1", {}, trouble.status === 404 ? "There is no such job" : "This cannot be shown"),
    el("section", {}, el("p", { class: "trouble", role: "alert" }, trouble.message), el("p", {}, el("a", { href: "#/" }, "All jobs"))));
  head();
}

function head() {
  const heading = main.querySelector("h1");
  document.title = heading ? `${heading.textContent} – Elastic` : "Elastic jobs";
  if (heading && turn > 1) { heading.tabIndex = -1; heading.focus({ preventScroll: true }); window.scrollTo(0, 0); }
}

async function show() {
  const mine = ++turn;
  leave();
  leave = () => {};
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const words = path.split("/").filter(Boolean).map(decodeURIComponent);
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.hash === "#/nodes" ? words[0] === "nodes" : words[0] !== "nodes";
    if (isHere) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  let session;
  try {
    session = await ask("/api/session");
  } catch (trouble) {
    main.replaceChildren(el("h1", {}, trouble.status === 403 ? "You are not logged in" : "The dashboard does not answer"), el("p", { class: "trouble" }, trouble.message));
    setTimeout(() => { if (mine === turn) show(); }, 3000);
    return;
  }
  if (mine !== turn) return;
  logout.hidden = !session.isLoggedIn;
  main.replaceChildren();
  if (!session.isLoggedIn || words[0] === "login") {
    setLive(null);
    if (session.isLoggedIn) { location.hash = "#/"; return; }
    showLogin(main, session, query === "refused", show);
  } else if (words[0] === "nodes") leave = showNodes(main, session, setLive, refuse);
  else if (words[0] === "jobs" && words.length === 3) {
    leave = showJob(main, session, { namespace: words[1], name: words[2], kind: new URLSearchParams(query).get("kind") ?? "" }, setLive, refuse);
  } else if (words[0] === "compare") leave = showCompare(main, query ?? "", setLive, refuse);
  else leave = showJobs(main, session, setLive, refuse);
  head();
}

logout.addEventListener("click", async () => { await ask("/api/session/end", {}).catch(() => {}); location.hash = "#/login"; show(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
window.addEventListener("hashchange", show);
setInterval(tick, 1000);
show();
