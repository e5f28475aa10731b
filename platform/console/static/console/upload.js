/** An adapter's files, sent part by part through the API; after a failure, or with the same files, on from there. */

import { Sha256 } from "./sha256.js";

const KNOWN = ["adapter_config.json", "adapter_model.safetensors", "golden.json"];
const READ_BYTES = 4 << 20;
const TRIES = 6;

const form = document.getElementById("upload");
const [doing, sent, problem, stop] = ["doing", "sent", "problem", "stop"].map((id) => document.getElementById(id));
const PART = 1 << 20;
let stopped = null;

/** What the API says about a request it refused. */
class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `The server answered with status ${status}.`);
    this.status = status;
    this.code = error?.code;
  }
}

async function call(method, path, body, type = "application/json") {
  const headers = { "X-Tenant": form.dataset.tenant, "X-CSRFToken": form.elements.csrfmiddlewaretoken.value };
  if (body !== undefined) headers["Content-Type"] = type;
  const answer = await fetch(form.dataset.api + path, { method, headers, body, signal: stopped.signal });
  const found = await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, found?.error);
  return found;
}

/** As the server has it in tenants/uploads.py: a tar may have any name, other files of a training run are left out. */
function partName(name) {
  if (KNOWN.includes(name)) return name;
  if (name.endsWith(".tar.gz") || name.endsWith(".tgz")) return "adapter.tar.gz";
  return name.endsWith(".tar") ? "adapter.tar" : null;
}

function show(text, done, whole) {
  if (doing.textContent !== text) doing.textContent = text;
  sent.max = whole;
  sent.value = done;
  sent.textContent = `${Math.floor((done / whole) * 100)} %`;
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** As the filter size writes it. */
function sized(bytes) {
  const unit = Math.min(Math.floor(Math.log10(Math.max(bytes, 1)) / 3), UNITS.length - 1);
  return `${(bytes / 1000 ** unit).toFixed(unit ? 1 : 0)} ${UNITS[unit]}`;
}

/** Reading gigabytes takes minutes: what cannot fit is said before. */
function requireRoom(files) {
  const largest = JSON.parse(form.dataset.largest);
  for (const [name, file] of files) {
    if (!file.size) throw new Error(`${file.name} is empty.`);
    if (file.size > largest[name]) throw new Error(`${file.name} has ${sized(file.size)}; at most ${sized(largest[name])} are taken.`);
  }
  const whole = files.reduce((sum, [, file]) => sum + file.size, 0);
  const room = Number(form.dataset.room ?? Infinity);
  if (whole > room) {
    throw new Error(`These files have ${sized(whole)}, and the account has room for ${sized(room)} of adapters. Delete adapters or versions first.`);
  }
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

async function digestOf(file, before, whole) {
  const digest = new Sha256();
  for (let at = 0; at < file.size; at += READ_BYTES) {
    if (stopped.signal.aborted) throw new DOMException("stopped", "AbortError");
    digest.update(new Uint8Array(await file.slice(at, at + READ_BYTES).arrayBuffer()));
    show("Reading the files", before + at, whole);
  }
  return digest.hex();
}

async function declared(files) {
  const whole = files.reduce((sum, [, file]) => sum + file.size, 0) || 1;
  const found = [];
  let before = 0;
  for (const [name, file] of files) {
    found.push({ name, size: file.size, sha256: await digestOf(file, before, whole) });
    before += file.size;
  }
  return found;
}

/** The open upload of just these files, if there is one; else a new one. */
async function begun(adapter, baseModel, files) {
  const same = (upload) => upload.state === "open" && upload.adapter === adapter
    && upload.files.length === files.length
    && files.every((file) => upload.files.some((other) => other.name === file.name && other.sha256 === file.sha256));
  const known = (await call("GET", "uploads?limit=100")).data.find(same);
  if (known) return known;
  const body = { adapter, files };
  if (baseModel) body.base_model = baseModel;
  return call("POST", "uploads", JSON.stringify(body));
}

/** Connections that break and servers that are busy are tried again; what the API refuses is not. */
async function patiently(work) {
  for (let tried = 1; ; tried += 1) {
    try {
      return await work();
    } catch (error) {
      const passing = error instanceof TypeError || error.status >= 500 || error.status === 429
        || ["busy", "wrong_offset"].includes(error.code);
      if (!passing || tried === TRIES) throw error;
      await new Promise((resolve) => { setTimeout(resolve, 500 * 2 ** tried); });
    }
  }
}

async function send(upload, files) {
  const whole = files.reduce((sum, [, file]) => sum + file.size, 0);
  const path = `uploads/${upload.id}`;
  const part = Math.min(upload.part_bytes, PART);
  const total = (state) => state.files.reduce((sum, file) => sum + file.received, 0);
  for (const [name, file] of files) {
    let state = upload;
    const received = () => state.files.find((each) => each.name === name).received;
    while (received() < file.size) {
      state = await patiently(async () => {
        try {
          const at = received();
          const to = `${path}/files/${encodeURIComponent(name)}?offset=${at}`;
          return await call("PUT", to, file.slice(at, at + part), "application/octet-stream");
        } catch (error) {
          if (error.name !== "AbortError" && error.status !== 404) state = await call("GET", path).catch(() => state);
          throw error;
        }
      });
      show(`${megabytes(total(state))} of ${megabytes(whole)} sent`, total(state), whole);
    }
    upload = state;
  }
  show("All is sent; the server puts it together", whole, whole);
  return patiently(() => call("POST", `${path}/complete`));
}

async function run() {
  const files = [...form.elements.content.files].map((file) => [partName(file.name), file]).filter(([name]) => name);
  if (!files.length) throw new Error("None of these is an adapter's file: choose adapter_config.json and adapter_model.safetensors, or one tar.");
  requireRoom(files);
  const upload = await begun(form.elements.name.value.trim(), form.elements.base_model.value, await declared(files));
  const done = await send(upload, files);
  location.assign(form.dataset.versionUrl.replace("NAME", encodeURIComponent(done.adapter)).replace(/0$/, done.version));
}

function busy(on) {
  document.getElementById("progress").hidden = !on;
  stop.hidden = !on;
  for (const button of form.querySelectorAll("button:not([type=button])")) button.disabled = on;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  problem.hidden = true;
  stopped = new AbortController();
  busy(true);
  try {
    await run();
  } catch (error) {
    busy(false);
    const again = "What was sent is kept for a day: choose the same files and press Upload to go on.";
    const reasons = { AbortError: `Stopped. ${again}`, TypeError: `The connection broke. ${again}` };
    problem.textContent = reasons[error.name] ?? error.message;
    problem.hidden = false;
    problem.scrollIntoView({ block: "nearest" });
  }
});
stop.addEventListener("click", () => stopped.abort());
document.getElementById("whole").hidden = true;
