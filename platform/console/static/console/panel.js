/** The chat itself: models, settings, one or two columns of answers, and the requests as code. */

import { Client } from "./client.js";
import { curl, python } from "./code.js";
import { Conversation } from "./conversation.js";
import { Models } from "./models.js";
import * as settings from "./settings.js";

const at = (id) => document.getElementById(id);

/** Follow the answer, unless the reader has scrolled up. */
function follow(change) {
  const page = document.documentElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 80;
  change();
  if (atEnd) page.scrollTop = page.scrollHeight;
}

export class Panel {
  #access = null;
  #client = null;
  #conversation = new Conversation(at("log"));
  #models = new Models();
  #cancels = new Set();

  constructor() {
    at("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    at("text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      at("ask").requestSubmit();
    });
    at("text").addEventListener("input", () => this.#fit());
    at("stop").addEventListener("click", () => this.#stop());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.#stop();
    });
    at("clear").addEventListener("click", () => this.#clear());
    at("compare").addEventListener("click", () => this.#compare());
    at("logprobs").addEventListener("change", () => {
      at("legend").hidden = !at("logprobs").checked;
    });
    for (const idea of document.querySelectorAll(".idea")) {
      idea.addEventListener("click", () => this.#ask(idea.textContent));
    }
    at("code-button").addEventListener("click", () => this.#showCode());
    for (const button of document.querySelectorAll("[data-copies]")) {
      button.addEventListener("click", () => this.#copy(button));
    }
  }

  /** Ask with this right from now on. @returns {Promise<boolean>} whether any model may be used with it */
  async enter(access) {
    const any = await this.#models.load(access);
    this.#client?.close();
    this.#access = access;
    this.#client = new Client(access);
    at("no-models").hidden = any;
    for (const id of ["send", "compare", "code-button"]) at(id).disabled = !any;
    this.#clear();
    return any;
  }

  #send() {
    const text = at("text").value.trim();
    if (!text || !this.#ask(text)) return;
    at("text").value = "";
    this.#fit();
  }

  /** Whether it was asked. */
  #ask(text) {
    if (this.#cancels.size || at("send").disabled || !settings.valid()) return false;
    at("empty").hidden = true;
    const models = this.#models.chosen;
    const sides = this.#conversation.ask(text, models);
    // One's own message is always shown, however far up one has read.
    document.documentElement.scrollTop = document.documentElement.scrollHeight;
    sides.forEach(({ messages, answer }, side) => this.#run(this.#body(models[side], messages), answer));
    return true;
  }

  #body(model, messages) {
    return {
      model,
      messages: [...settings.system(), ...messages],
      ...settings.fields(),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  #run(body, answer) {
    const cancel = this.#client.stream(body, {
      chunk: (data) => follow(() => answer.chunk(data)),
      done: (cancelled) => over(() => answer.end(cancelled ? "stopped" : "")),
      error: (error) => over(() => answer.fail(error, this.#remedy(error, body.messages.at(-1).content))),
    });
    const over = (end) => {
      follow(end);
      this.#cancels.delete(cancel);
      this.#busy();
      if (!this.#cancels.size && at("code").open === false) at("text").focus({ preventScroll: true });
    };
    this.#cancels.add(cancel);
    this.#busy();
  }

  /** A key that somebody ended is replaced only when its holder says so. */
  #remedy(error, question) {
    const again = () => this.#ask(question);
    if (!this.#access.renew) return null;
    if (error.code === "invalid_api_key") return { text: "Ask again", act: again };
    if (error.code !== "playground_key_ended") return null;
    const act = () => {
      this.#access.renew();
      again();
    };
    return { text: "Use a new key and ask again", act };
  }

  #stop() {
    for (const cancel of this.#cancels) cancel();
  }

  #busy() {
    const running = this.#cancels.size > 0;
    at("send").hidden = running;
    at("stop").hidden = !running;
    for (const id of ["clear", "compare"]) at(id).disabled = running;
  }

  #clear() {
    this.#conversation.clear();
    at("empty").hidden = false;
    at("text").focus({ preventScroll: true });
  }

  #compare() {
    const beside = at("side-b").hidden;
    at("side-b").hidden = !beside;
    at("compare").setAttribute("aria-pressed", String(beside));
  }

  #fit() {
    const text = at("text");
    text.style.height = "auto";
    text.style.height = `${text.scrollHeight + 2}px`;
  }

  /** The requests that would be sent now, one for each side: with what is typed, else with the last question. */
  #showCode() {
    if (!settings.valid()) return;
    const bodies = this.#models.chosen.map((model, side) => this.#next(model, side));
    at("code-curl").value = curl(location.origin, bodies);
    at("code-python").value = python(location.origin, bodies);
    at("code").showModal();
  }

  #next(model, side) {
    const text = at("text").value.trim();
    const history = this.#conversation.messages(side);
    const question = text || this.#conversation.last || "Hello!";
    const asked = !text && history.length ? history.slice(0, -2) : history;
    return this.#body(model, [...asked, { role: "user", content: question }]);
  }

  async #copy(button) {
    const source = at(button.dataset.copies);
    source.select();
    try {
      await navigator.clipboard.writeText(source.value);
      at("code-note").textContent = "Copied.";
    } catch {
      at("code-note").textContent = "The browser does not allow it here. It is selected: press Ctrl+C.";
    }
  }
}
