/** The console's playground: asks for whoever is signed in, or with a key of theirs that is typed in. */

import { KeyAccess, SessionAccess } from "./access.js";
import { Panel } from "./panel.js";

const at = (id) => document.getElementById(id);
const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
const session = new SessionAccess(at("playground"), token, (key) => {
  at("with-session").textContent = `Requests run with the key playground (${key}): its limits hold, and they are billed.`;
});
const panel = new Panel();

function show(ownKey) {
  at("with-session").hidden = ownKey;
  at("with-key").hidden = !ownKey;
}

at("own-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  at("own-key-problem").hidden = true;
  try {
    await panel.enter(new KeyAccess(at("key").value.trim()));
    show(true);
  } catch (error) {
    at("own-key-problem").textContent = error.message;
    at("own-key-problem").hidden = false;
  }
  at("key").value = "";
});
at("back").addEventListener("click", async () => {
  await panel.enter(session);
  show(false);
});
await panel.enter(session);
