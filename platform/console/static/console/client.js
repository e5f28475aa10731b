/** Conversations over one WebSocket, opened with a ticket. */

import { ApiProblem } from "./access.js";

const CLOSED = { message: "The connection was closed.", code: "closed" };
const NOT_OPENED = { message: "The connection could not be opened.", code: "closed" };
const REASONS = {
  1001: { message: "The server is restarting.", code: "closed" },
  4401: { message: "The key is no longer valid.", code: "invalid_api_key" },
  4408: { message: "This page read too slowly, and the connection was closed.", code: "closed" },
};

export class Client {
  #access;
  #socket = null;
  #opening = null;
  #running = new Map();
  #count = 0;

  /** @param {{ticket: function(): Promise<object>}} access */
  constructor(access) {
    this.#access = access;
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
    const running = { on, socket: null };
    this.#running.set(id, running);
    this.#open().then(
      (socket) => {
        if (cancelled) return this.#end(id, (ended) => ended.done(true));
        running.socket = socket;
        socket.send(JSON.stringify({ type: "request", id, body }));
      },
      (error) => this.#end(id, (ended) => ended.error(error)),
    );
    return () => {
      cancelled = true;
      if (running.socket?.readyState === WebSocket.OPEN) running.socket.send(JSON.stringify({ type: "cancel", id }));
    };
  }

  close() {
    this.#socket?.close();
  }

  /** The open socket, or one that is opened for everybody who waits. */
  #open() {
    if (this.#socket?.readyState === WebSocket.OPEN) return Promise.resolve(this.#socket);
    this.#opening ??= this.#connect().finally(() => {
      this.#opening = null;
    });
    return this.#opening;
  }

  async #connect() {
    const { ticket, protocol, url } = await this.#access.ticket();
    const address = new URL(url, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    const socket = new WebSocket(address, [protocol, `ticket.${ticket}`]);
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onclose = () => reject(new ApiProblem(NOT_OPENED));
    });
    socket.onmessage = (event) => this.#receive(JSON.parse(event.data));
    socket.onclose = (event) => this.#lost(socket, REASONS[event.code] ?? CLOSED);
    this.#socket = socket;
    return socket;
  }

  #receive(frame) {
    if (frame.type === "chunk") this.#running.get(frame.id)?.on.chunk(frame.data);
    else if (frame.type === "done") this.#end(frame.id, (on) => on.done(frame.cancelled === true));
    else if (frame.type === "error") {
      // What opened it has ended, and it is closed in a moment: what is asked from now on needs another one.
      if (["invalid_api_key", "signed_out"].includes(frame.error.code)) this.#socket = null;
      this.#end(frame.id, (on) => on.error(new ApiProblem(frame.error)));
    }
  }

  #lost(socket, error) {
    if (this.#socket === socket) this.#socket = null;
    for (const [id, running] of [...this.#running]) {
      if (running.socket === socket) this.#end(id, (on) => on.error(new ApiProblem(error)));
    }
  }

  #end(id, tell) {
    const running = this.#running.get(id);
    this.#running.delete(id);
    if (running) tell(running.on);
  }
}
