/** The turns of a conversation, on the page and as messages. All text goes in as text, never as markup. */

function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** One answer while it comes in, with its figures. */
class Answer {
  #turn;
  #text;
  #facts;
  #asked = performance.now();
  #first = null;
  #usage = null;

  constructor(log, model) {
    this.#turn = element("div", "turn assistant running");
    this.#text = element("div", "text");
    this.#facts = element("div", "facts");
    this.#turn.append(element("div", "who", model), this.#text, this.#facts);
    log.append(this.#turn);
  }

  get content() {
    return this.#text.textContent;
  }

  chunk(data) {
    this.#usage = data.usage ?? this.#usage;
    const piece = data.choices[0]?.delta?.content;
    if (!piece) return;
    this.#first ??= performance.now();
    this.#text.append(piece);
  }

  end(note = "") {
    this.#turn.classList.remove("running");
    const facts = [];
    if (this.#first !== null) facts.push(`first token ${Math.round(this.#first - this.#asked)} ms`);
    if (this.#usage !== null) {
      const { prompt_tokens: read, completion_tokens: written, prompt_tokens_details: details } = this.#usage;
      const seconds = (performance.now() - this.#first) / 1000;
      if (written > 1 && seconds > 0) facts.push(`${((written - 1) / seconds).toFixed(1)} tokens/s`);
      const cached = details?.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
      facts.push(`${read}${cached} + ${written} tokens`);
    }
    if (note) facts.push(note);
    this.#facts.textContent = facts.join(" · ");
  }

  fail(message) {
    this.end();
    const problem = element("div", "problem", message);
    problem.setAttribute("role", "alert");
    this.#text.after(problem);
  }
}

export class Conversation {
  #log;
  #messages = [];

  /** @param {HTMLElement} log where the turns go */
  constructor(log) {
    this.#log = log;
  }

  /** What the next request sends. */
  get messages() {
    return [...this.#messages];
  }

  ask(text) {
    this.#messages.push({ role: "user", content: text });
    const turn = element("div", "turn user");
    turn.append(element("div", "text", text));
    this.#log.append(turn);
  }

  answer(model) {
    return new Answer(this.#log, model);
  }

  /** A complete or cancelled answer becomes part of the conversation; without text the question goes too. */
  keep(answer) {
    if (answer.content) this.#messages.push({ role: "assistant", content: answer.content });
    else this.#messages.pop();
  }

  clear() {
    this.#messages = [];
    this.#log.replaceChildren();
  }
}
