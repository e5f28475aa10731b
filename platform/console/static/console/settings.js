/** The settings' form, as fields of a request. What is left empty is left out: the server's default holds. */

const at = (id) => document.getElementById(id);

export function valid() {
  const form = at("settings");
  if (form.checkValidity()) return true;
  at("settings-box").open = true;
  form.reportValidity();
  return false;
}

export function fields() {
  const found = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) {
    const { valueAsNumber } = at(name);
    if (!Number.isNaN(valueAsNumber)) found[name] = valueAsNumber;
  }
  const stops = at("stop-texts").value.split("\n").filter((line) => line).map((line) => line.replaceAll("\\n", "\n"));
  if (stops.length) found.stop = stops;
  if (at("logprobs").checked) Object.assign(found, { logprobs: true, top_logprobs: 5 });
  return found;
}

/** What goes before the conversation. */
export function system() {
  const text = at("system").value.trim();
  return text ? [{ role: "system", content: text }] : [];
}
