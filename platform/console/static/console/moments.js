/** Fields for times (data-utc) are typed and shown in the reader's zone, and sent as UTC: as their labels say. */

const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const shown = new WeakMap();

const two = (number) => String(number).padStart(2, "0");

function local(moment) {
  const day = `${String(moment.getFullYear()).padStart(4, "0")}-${two(moment.getMonth() + 1)}-${two(moment.getDate())}`;
  return `${day}T${two(moment.getHours())}:${two(moment.getMinutes())}`;
}

/** From what the server wrote, never from the field's own text: a browser may have put back what was typed before. */
function show(field) {
  const utc = field.dataset.utc;
  delete field.dataset.utc;
  const moment = new Date(`${utc}Z`);
  const text = Number.isNaN(moment.getTime()) ? "" : local(moment);
  shown.set(field, { utc, text });
  field.defaultValue = text;
  field.value = text;
  for (const label of field.labels) {
    for (const node of label.childNodes) {
      if (node.nodeType === Node.TEXT_NODE) node.textContent = node.textContent.replace("(UTC)", `(${ZONE})`);
    }
  }
}

/** A time that nobody touched is sent as it came: where clocks are put back, the same local time stands for two. */
function sent(field) {
  const { utc, text } = shown.get(field);
  if (field.value === text) return utc;
  return field.value && new Date(field.value).toISOString().slice(0, -":00.000Z".length);
}

function showAll() {
  for (const field of document.querySelectorAll("input[data-utc]")) show(field);
}

/** Whoever sends the form, the browser or htmx. */
document.addEventListener("formdata", ({ target, formData }) => {
  for (const field of target.elements) if (shown.has(field)) formData.set(field.name, sent(field));
});

document.addEventListener("htmx:afterSwap", showAll);
showAll();
