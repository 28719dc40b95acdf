// The job as its user wrote it: image, command and arguments of each role, and the YAML. It is read when somebody opens it.

import { ask, jobPath } from "./api.js";
import { el, put, table } from "./dom.js";

export function definition(job) {
  const told = el("p", { class: "soft", role: "status" });
  const yaml = el("pre", { tabindex: "0", "aria-label": "YAML" });
  const roles = table({
    caption: "Roles", none: "", rows: [], key: (role) => role.type,
    columns: [
      { name: "Role", cell: (role) => role.type },
      { name: "Replicas", number: true, cell: (role) => role.replicas ?? "–" },
      { name: "Image", cell: (role) => role.image },
      { name: "Command", wide: true, cell: (role) => el("code", {}, [...role.command, ...role.args].map(quoted).join(" ")) },
      { name: "Folder", cell: (role) => role.workingDir },
      { name: "Resources", cell: (role) => Object.entries(role.resources).map(([name, amount]) => `${name} ${amount}`).join(", ") },
    ],
  });
  const body = el("div", { hidden: true }, roles.box, yaml);
  const load = async () => {
    try {
      const found = await ask(`${jobPath(job)}/definition?kind=${encodeURIComponent(job.kind)}`);
      roles.fill(found.roles);
      put(yaml, found.yaml + (found.isCut ? "\n# the rest is cut off here; `elastic get -o yaml` has it" : ""));
      put(told, "");
      body.hidden = false;
    } catch (trouble) {
      told.textContent = trouble.message;
    }
  };
  return el("details", { on: { toggle: (event) => { if (event.target.open) load(); } } }, el("summary", {}, "Image, command, arguments and YAML"), told, body);
}

// A word as a shell needs it.
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
