// What a browser without a session sees.

import { ask } from "./api.js";
import { el } from "./dom.js";
import { command } from "./format.js";

// isRefused: they come from a link that did not let them in.
export function showLogin(main, session, isRefused, done) {
  if (session.wants === "link") {
    main.append(
      el("h1", {}, isRefused ? "This link has been used" : "You are not logged in"),
      el("section", {}, el("p", {}, `${isRefused ? "Each link lets one browser in. Print another one" : "Print a link"}, and open it here:`),
        el("pre", {}, command(session, "dashboard"))),
    );
    return;
  }
  const field = el("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const trouble = el("p", { class: "trouble", role: "alert" });
  const form = el("form", {
    on: {
      submit: async (event) => {
        event.preventDefault();
        trouble.textContent = "";
        try {
          await ask("/api/session", { token: field.value });
          location.hash = "#/";
          done();
        } catch (error) {
          trouble.textContent = error.message;
        }
      },
    },
  }, el("p", {}, el("label", { for: "token" }, "Your Kubernetes token")), el("div", { class: "tools" }, field, el("button", { class: "go" }, "Log in")), trouble);
  main.append(
    el("h1", {}, "Log in"),
    el("section", {}, el("p", {}, "You see what this token may list. It is kept in the memory of the server only, for 12 hours."), form,
      el("p", { class: "soft" }, "A token of an account: "), el("pre", {}, "kubectl create token ACCOUNT --namespace NAMESPACE")),
  );
}
