/** The API as the page uses it: models over HTTP, conversations over one WebSocket opened with a ticket. */

export class ApiProblem extends Error {
  /** @param {{message: string, code: ?string}} error an OpenAI-shaped error */
  constructor(error) {
    super(error.message);
    this.code = error.code;
  }
}

const CLOSED = { message: "The connection was closed.", code: "closed" };
const REASONS = { 4401: { message: "The API key is no longer valid.", code: "invalid_api_key" } };

export class Client {
  #key;
  #socket = null;
  #running = new Map();
  #count = 0;

  /** @param {string} key the API key; it stays in this object. */
  constructor(key) {
    this.#key = key;
  }

  async models() {
    return (await this.#call("GET", "/v1/models")).data;
  }

  /**
   * Stream one chat completion.
   * @param {object} body as for POST /v1/chat/completions
   * @param {{chunk: function(object), done: function(boolean), error: function(Error)}} on exactly one of done and
   *   error is called, once; done's argument says whether it was cancelled
   * @returns {function()} cancels it
   */
  stream(body, on) {
    const id = String(++this.#count);
    let cancelled = false;
    this.#running.set(id, on);
    this.#open().then(
      (socket) => {
        if (cancelled) this.#end(id, (ended) => ended.done(true));
        else socket.send(JSON.stringify({ type: "request", id, body }));
      },
      (error) => this.#end(id, (ended) => ended.error(error)),
    );
    return () => {
      cancelled = true;
      if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ type: "cancel", id }));
    };
  }

  close() {
    this.#socket?.close();
    this.#key = "";
  }

  async #call(method, path) {
    let answer;
    try {
      answer = await fetch(path, { method, headers: { Authorization: `Bearer ${this.#key}` } });
    } catch {
      throw new ApiProblem({ message: "The server cannot be reached.", code: "unreachable" });
    }
    const body = await answer.json();
    if (!answer.ok) throw new ApiProblem(body.error);
    return body;
  }

  async #open() {
    if (this.#socket?.readyState === WebSocket.OPEN) return this.#socket;
    const { ticket, protocol, url } = await this.#call("POST", "/api/ws-tickets");
    const address = new URL(url, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address, [protocol, `ticket.${ticket}`]);
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onclose = () => reject(new ApiProblem(CLOSED));
    });
    socket.onmessage = (event) => this.#receive(JSON.parse(event.data));
    socket.onclose = (event) => this.#lost(REASONS[event.code] ?? CLOSED);
    this.#socket = socket;
    return socket;
  }

  #receive(frame) {
    if (frame.type === "chunk") this.#running.get(frame.id)?.chunk(frame.data);
    else if (frame.type === "done") this.#end(frame.id, (on) => on.done(frame.cancelled === true));
    else if (frame.type === "error") this.#end(frame.id, (on) => on.error(new ApiProblem(frame.error)));
  }

  #lost(error) {
    this.#socket = null;
    for (const id of [...this.#running.keys()]) this.#end(id, (on) => on.error(new ApiProblem(error)));
  }

  #end(id, tell) {
    const on = this.#running.get(id);
    this.#running.delete(id);
    if (on) tell(on);
  }
}
