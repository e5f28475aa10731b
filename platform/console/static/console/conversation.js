/** The turns of a conversation: each question once, beside one another the answers of the models that were asked. */

import { Answer } from "./answer.js";
import { element } from "./element.js";

export class Conversation {
  #log;
  #turns = [];

  /** @param {HTMLElement} log where the turns go */
  constructor(log) {
    this.#log = log;
  }

  /**
   * A question, and the answers that are to come.
   * @param {string} text the question
   * @param {string[]} models of each side
   * @returns {{messages: object[], answer: Answer}[]} for each side what to send, and what takes the answer
   */
  ask(text, models) {
    const turn = element("div", "turn");
    const asked = element("div", "asked");
    const answers = element("div", models.length > 1 ? "answers beside" : "answers");
    asked.append(element("div", "text", text));
    turn.append(asked, answers);
    this.#log.append(turn);
    const messages = models.map((_, side) => [...this.messages(side), { role: "user", content: text }]);
    const made = models.map((model) => new Answer(answers, model));
    this.#turns.push({ text, answers: made });
    return made.map((answer, side) => ({ messages: messages[side], answer }));
  }

  /** What one side has said and heard so far. A question that it did not answer is left out. */
  messages(side) {
    return this.#turns
      .filter(({ answers }) => answers[side]?.content)
      .flatMap(({ text, answers }) => [
        { role: "user", content: text },
        { role: "assistant", content: answers[side].content },
      ]);
  }

  /** The last question, or nothing. */
  get last() {
    return this.#turns.at(-1)?.text ?? "";
  }

  clear() {
    this.#turns = [];
    this.#log.replaceChildren();
  }
}
