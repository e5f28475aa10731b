/** The chat page for people who have a key and nothing else. */

import { KeyAccess } from "./access.js";
import { Panel } from "./panel.js";

const at = (id) => document.getElementById(id);
const panel = new Panel();

function say(message) {
  at("door-problem").textContent = message;
  at("door-problem").hidden = !message;
}

function show(inside) {
  at("door").hidden = inside;
  for (const id of ["playground", "leave"]) at(id).hidden = !inside;
  (inside ? at("text") : at("key")).focus();
}

at("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  say("");
  const button = event.submitter ?? at("enter").querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    if (await panel.enter(new KeyAccess(at("key").value.trim()))) show(true);
    else say("This key may not use any model yet. Whoever looks after the account can allow one.");
    at("key").value = "";
  } catch (error) {
    say(error.message);
  } finally {
    button.removeAttribute("aria-busy");
  }
});
at("leave").addEventListener("click", () => location.reload());
show(false);
