import { Client } from "./client.js";
import { Conversation } from "./conversation.js";

const at = (id) => document.getElementById(id);
const conversation = new Conversation(at("log"));
let client = null;
let cancel = null;

function say(place, message) {
  place.textContent = message;
  place.hidden = !message;
}

function fillModels(models) {
  const groups = { "Base models": [], Adapters: [] };
  for (const { id } of models) groups[id.includes("/") ? "Adapters" : "Base models"].push(new Option(id, id));
  at("model").replaceChildren(
    ...Object.entries(groups).filter(([, options]) => options.length).map(([label, options]) => {
      const group = document.createElement("optgroup");
      group.label = label;
      group.append(...options);
      return group;
    }),
  );
}

function show(inside) {
  at("door").hidden = inside;
  for (const id of ["session", "talk", "composer"]) at(id).hidden = !inside;
  (inside ? at("text") : at("key")).focus();
}

function busy(running) {
  at("send").hidden = running;
  at("stop").hidden = !running;
  for (const id of ["clear", "model"]) at(id).disabled = running;
}

function fit() {
  const text = at("text");
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight + 2}px`;
}

/** Follow the answer, unless the reader has scrolled up. */
function follow(change) {
  const page = document.documentElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

function ask(text) {
  const model = at("model").value;
  at("empty").hidden = true;
  conversation.ask(text);
  const answer = conversation.answer(model);
  // One's own message is always shown, however far up one has read.
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
  busy(true);
  const body = {
    model,
    messages: conversation.messages,
    temperature: at("temperature").valueAsNumber,
    max_tokens: at("max-tokens").valueAsNumber,
    stream: true,
    stream_options: { include_usage: true },
  };
  const over = (end) => {
    follow(end);
    conversation.keep(answer);
    busy(false);
    at("text").focus();
  };
  cancel = client.stream(body, {
    chunk: (data) => follow(() => answer.chunk(data)),
    done: (cancelled) => over(() => answer.end(cancelled ? "stopped" : "")),
    error: (error) => over(() => answer.fail(error.message)),
  });
}

at("enter").addEventListener("submit", async (event) => {
  event.preventDefault();
  say(at("door-problem"), "");
  const entering = new Client(at("key").value.trim());
  const button = event.submitter ?? at("enter").querySelector("button");
  button.setAttribute("aria-busy", "true");
  try {
    const models = await entering.models();
    if (!models.length) throw new Error("This key may not use any model yet.");
    fillModels(models);
    client = entering;
    at("key").value = "";
    show(true);
  } catch (error) {
    say(at("door-problem"), error.message);
  } finally {
    button.removeAttribute("aria-busy");
  }
});

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || !at("stop").hidden) return;
  at("text").value = "";
  fit();
  ask(text);
});

at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  }
});
at("text").addEventListener("input", fit);
at("stop").addEventListener("click", () => cancel?.());
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !at("stop").hidden) cancel?.();
});
at("clear").addEventListener("click", () => {
  conversation.clear();
  at("empty").hidden = false;
  at("text").focus();
});
at("leave").addEventListener("click", () => location.reload());
for (const idea of document.querySelectorAll(".idea")) idea.addEventListener("click", () => ask(idea.textContent));
show(false);
