/** A batch's file, however large: sent on its own, with progress, and named in the form instead. */

const form = document.getElementById("batch");
const [doing, sent, problem, stop] = ["doing", "sent", "problem", "stop"].map((id) => document.getElementById(id));
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
let sending = null;

function say(text) {
  problem.textContent = text;
  problem.hidden = !text;
  if (text) problem.scrollIntoView({ block: "nearest" });
}

function busy(on) {
  document.getElementById("progress").hidden = !on;
  stop.hidden = !on;
  for (const button of form.querySelectorAll("button:not([type=button])")) button.disabled = on;
}

/** Its id. The request tells of its progress, which fetch does not. */
function send(file) {
  return new Promise((resolve, reject) => {
    const body = new FormData();
    body.append("purpose", "batch");
    body.append("file", file);
    sending = new XMLHttpRequest();
    sending.open("POST", form.dataset.files);
    sending.setRequestHeader("X-Tenant", form.dataset.tenant);
    sending.setRequestHeader("X-CSRFToken", form.elements.csrfmiddlewaretoken.value);
    sending.responseType = "json";
    sending.upload.addEventListener("progress", (event) => {
      doing.textContent = `${megabytes(Math.min(event.loaded, file.size))} of ${megabytes(file.size)} sent`;
      sent.max = event.total;
      sent.value = event.loaded;
    });
    sending.addEventListener("load", () => {
      if (sending.status === 200 && sending.response?.id) resolve(sending.response.id);
      else reject(new Error(sending.response?.error?.message ?? `The server answered with status ${sending.status}.`));
    });
    sending.addEventListener("error", () => reject(new Error("The connection broke. Nothing was kept: send it again.")));
    sending.addEventListener("abort", () => reject(new Error("Stopped. Nothing was kept.")));
    sending.send(body);
  });
}

form.addEventListener("submit", async (event) => {
  const [file] = form.elements.file.files;
  if (!file || form.elements.known.value) return; // the server says which of the two is too many
  event.preventDefault();
  say("");
  const most = Number(form.dataset.most);
  if (file.size > most) {
    say(`${file.name} has ${megabytes(file.size)}; a file has at most ${megabytes(most)}. Make several batches of it.`);
    return;
  }
  busy(true);
  try {
    const id = await send(file);
    form.elements.known.append(new Option(`${file.name} (${id})`, id, true, true));
    form.elements.file.value = "";
    form.submit();
  } catch (error) {
    busy(false);
    say(error.message);
  }
});
stop.addEventListener("click", () => sending?.abort());
window.addEventListener("pageshow", () => busy(false));
