/** An answer's text token by token, coloured by probability; each token shows what else it could have been. */

import { element } from "./element.js";

const STEPS = [0.1, 0.3, 0.6, 0.9];
const KEYS = { ArrowRight: (at) => at + 1, ArrowLeft: (at) => at - 1, Home: () => 0, End: () => Infinity };

/** A token in quotes, with its line breaks visible; bytes that are no character are written \\xb1 already. */
const written = (token) => JSON.stringify(token).replaceAll("\\\\x", "\\x");
const percent = (logprob) => `${(Math.exp(logprob) * 100).toFixed(1)} %`;

/** p0 (unlikely) to p4 (nearly certain): the class of a probability. */
export function likelihood(logprob) {
  const probability = Math.exp(logprob);
  return `p${STEPS.filter((step) => probability >= step).length}`;
}

export class TokenText {
  #place;
  #detail = element("div", "token-detail");
  #entries = new Map();
  #decoder = new TextDecoder();
  #queue = [];
  #partial = [];
  #pending = "";

  /** @param {HTMLElement} place where the text stands; its parent has the detail */
  constructor(place) {
    this.#place = place;
    this.#detail.setAttribute("role", "status");
    this.#detail.hidden = true;
    place.after(this.#detail);
    place.addEventListener("keydown", (event) => this.#move(event));
    for (const type of ["focusin", "pointerover"]) place.addEventListener(type, (event) => this.#show(event.target));
    for (const type of ["focusout", "pointerleave"]) place.addEventListener(type, () => this.#hide());
  }

  /** @param {string} text of the answer @param {object[]} scored tokens as OpenAI's chunks have them */
  add(text, scored = []) {
    this.#pending += text;
    for (const entry of scored) {
      // A character of several tokens shows with the last of them.
      this.#partial.push(entry);
      const read = this.#decoder.decode(Uint8Array.from(entry.bytes ?? []), { stream: true });
      if (!read) continue;
      this.#queue.push({ text: read, entries: this.#partial });
      this.#partial = [];
    }
    this.#write();
  }

  /** What no token accounts for stands there without colour. */
  end() {
    if (this.#pending) this.#place.append(this.#pending);
    this.#pending = "";
  }

  #write() {
    while (this.#queue.length && this.#pending) {
      const [{ text, entries }] = this.#queue;
      // Text may begin without the space that its first token has, and a stop sequence ends within a token.
      const shown = [text, text.trimStart()].find((form) => form && this.#pending.startsWith(form));
      if (shown === undefined && text.startsWith(this.#pending)) return;
      this.#queue.shift();
      if (shown === undefined) continue;
      this.#pending = this.#pending.slice(shown.length);
      this.#append(shown, entries);
    }
  }

  #append(text, entries) {
    const least = Math.min(...entries.map((entry) => entry.logprob));
    const token = element("span", `token ${likelihood(least)}`, text);
    token.tabIndex = this.#entries.size ? -1 : 0;
    this.#entries.set(token, entries);
    this.#place.append(token);
  }

  #move(event) {
    if (event.key === "Escape") this.#hide();
    const tokens = [...this.#entries.keys()];
    const at = tokens.indexOf(event.target);
    if (!(event.key in KEYS) || at < 0) return;
    event.preventDefault();
    const next = tokens[Math.max(0, Math.min(tokens.length - 1, KEYS[event.key](at)))];
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(token) {
    const entries = this.#entries.get(token);
    if (!entries) return;
    const table = document.createElement("table");
    for (const entry of entries) {
      const others = (entry.top_logprobs ?? []).filter((other) => other.token !== entry.token);
      for (const [row, each] of [entry, ...others].entries()) {
        const line = table.insertRow();
        line.className = row === 0 ? "taken" : "";
        line.append(element("td", "", written(each.token)), element("td", "number", percent(each.logprob)));
      }
    }
    this.#detail.replaceChildren(table);
    this.#detail.hidden = false;
    const room = this.#place.offsetLeft + this.#place.offsetWidth - this.#detail.offsetWidth;
    this.#detail.style.left = `${Math.max(this.#place.offsetLeft, Math.min(token.offsetLeft, room))}px`;
    this.#detail.style.top = `${token.offsetTop + token.offsetHeight + 4}px`;
  }

  #hide() {
    this.#detail.hidden = true;
  }
}
