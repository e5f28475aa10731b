/** Where the right to ask comes from: a key that was typed in, or the session of whoever is signed in. */

export class ApiProblem extends Error {
  /** @param {{message: string, code: ?string}} error an OpenAI-shaped error */
  constructor(error) {
    super(error.message);
    this.code = error.code;
  }
}

const UNREACHABLE = { message: "The server cannot be reached.", code: "unreachable" };
const SIGNED_OUT = { message: "You are no longer signed in.", code: "signed_out" };
const NONSENSE = { message: "The server's answer cannot be read.", code: "unreachable" };

async function call(method, path, headers, body) {
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new ApiProblem(UNREACHABLE);
  }
  const found = await answer.json().catch(() => null);
  if (found === null) throw new ApiProblem(NONSENSE);
  if (!answer.ok) throw new ApiProblem({ ...found.error, code: answer.status === 401 ? "unauthorised" : found.error.code });
  return found;
}

/** Where a page leads whoever is not signed in: as LOGIN_URL says. */
const SIGN_IN = "/accounts/sign-in";

const MOST_SHOWN = 100;

/** @typedef {{names: string[], more: boolean, chosen: ?string}} Models more: whether there are others of these words */

export class KeyAccess {
  #headers;
  #names = null;

  /** @param {string} key the API key; it stays in this object */
  constructor(key) {
    this.#headers = { Authorization: `Bearer ${key}` };
  }

  /** @returns {Promise<Models>} those with `query` in their name */
  async models(query = "") {
    this.#names ??= (await call("GET", "/v1/models", this.#headers)).data.map(({ id }) => id);
    const found = this.#names.filter((name) => name.toLowerCase().includes(query.toLowerCase()));
    return { names: found.slice(0, MOST_SHOWN), more: found.length > MOST_SHOWN, chosen: null };
  }

  ticket() {
    return call("POST", "/api/ws-tickets", this.#headers);
  }
}

export class SessionAccess {
  #tickets;
  #headers;
  #told;
  #renew = false;

  /**
   * @param {HTMLElement} page says in data-tickets where tickets are, in data-tenant for which account, and holds the
   *   select with the names of the models
   * @param {string} token against forged requests
   * @param {function(string)} told of the id of the key whenever there is a ticket of it
   */
  constructor(page, token, told) {
    this.#told = told;
    this.#tickets = page.dataset.tickets;
    this.#headers = { "Content-Type": "application/json", "X-CSRFToken": token, "X-Tenant": page.dataset.tenant };
    this.first = page.querySelector("#model-a").cloneNode(true);
  }

  async models(query = "") {
    return query ? this.#read(await this.#found(query)) : this.#read(this.first);
  }

  async ticket() {
    const body = { new_key: this.#renew };
    try {
      const ticket = await call("POST", this.#tickets, this.#headers, body);
      this.#renew = false;
      this.#told(ticket.key_id);
      return ticket;
    } catch (error) {
      if (error.code !== "unauthorised") throw error;
      throw new ApiProblem(SIGNED_OUT);
    }
  }

  /** The next ticket may be of a new key: the last one was revoked. */
  renew() {
    this.#renew = true;
  }

  async #found(query) {
    let answer, text;
    try {
      answer = await fetch(`?${new URLSearchParams({ q: query })}`);
      text = await answer.text();
    } catch {
      throw new ApiProblem(UNREACHABLE);
    }
    if (answer.redirected && new URL(answer.url).pathname === SIGN_IN) throw new ApiProblem(SIGNED_OUT);
    const select = new DOMParser().parseFromString(text, "text/html").getElementById("model-a");
    if (!select) throw new ApiProblem({ message: `The server could not answer (status ${answer.status}).`, code: "unreachable" });
    return select;
  }

  #read(select) {
    const options = [...select.options];
    const chosen = options.find((option) => option.defaultSelected)?.value ?? null;
    return { names: options.map((option) => option.value), more: "more" in select.dataset, chosen };
  }
}
