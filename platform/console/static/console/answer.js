import { advice } from "./advice.js";
import { element } from "./element.js";
import { TokenText } from "./tokens.js";

const MILLISECONDS = 1000;

/** One model's answer while it comes in, with its figures. */
export class Answer {
  #box;
  #text;
  #figures = element("div", "figures");
  #tokens;
  #content = "";
  #asked = performance.now();
  #first = null;
  #usage = null;
  #reason = null;
  #received = 0;

  /** @param {HTMLElement} place where it goes @param {string} model its name */
  constructor(place, model) {
    this.#box = element("div", "answer running");
    this.#text = element("div", "text");
    this.#box.append(element("div", "voice", model), this.#text, this.#figures);
    this.#tokens = new TokenText(this.#text);
    place.append(this.#box);
  }

  get content() {
    return this.#content;
  }

  chunk(data) {
    this.#usage = data.usage ?? this.#usage;
    const choice = data.choices[0];
    if (!choice) return;
    this.#reason = choice.finish_reason ?? this.#reason;
    const text = choice.delta?.content ?? "";
    const scored = choice.logprobs?.content ?? [];
    if (!text && !scored.length) return;
    this.#first ??= performance.now();
    this.#received += Math.max(scored.length, 1);
    this.#content += text;
    if (scored.length) this.#tokens.add(text, scored);
    else {
      this.#tokens.add(text);
      this.#tokens.end();
    }
  }

  end(note = "") {
    this.#tokens.end();
    this.#box.classList.remove("running");
    const figures = [];
    if (this.#first !== null) figures.push(`first token ${Math.round(this.#first - this.#asked)} ms`);
    if (this.#usage !== null) {
      const { prompt_tokens: read, completion_tokens: written, prompt_tokens_details: details } = this.#usage;
      const seconds = (performance.now() - this.#first) / MILLISECONDS;
      if (written > 1 && seconds > 0) figures.push(`${((written - 1) / seconds).toFixed(1)} tokens/s`);
      const cached = details?.cached_tokens ? ` (${details.cached_tokens} cached)` : "";
      figures.push(`${read} tokens read${cached}`, `${written} written`);
    } else if (this.#received) {
      figures.push(`${this.#received} token${this.#received === 1 ? "" : "s"} received`);
    }
    if (this.#reason === "length") figures.push("cut off at max tokens");
    if (note) figures.push(note);
    this.#figures.textContent = figures.join(" · ");
  }

  /**
   * @param {ApiProblem} error what happened
   * @param {?{text: string, act: function()}} remedy a button that helps
   */
  fail(error, remedy = null) {
    this.end();
    const problem = element("div", "notice error");
    problem.setAttribute("role", "alert");
    problem.append(element("div", "what", error.message));
    const help = advice(error.code);
    if (help) problem.append(element("div", "quiet", help));
    if (remedy) {
      const button = element("button", "outline", remedy.text);
      button.type = "button";
      button.addEventListener("click", () => {
        button.disabled = true;
        remedy.act();
      });
      problem.append(button);
    }
    this.#figures.before(problem);
  }
}
