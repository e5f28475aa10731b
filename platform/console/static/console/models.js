/** The two menus of models, and the search over them where there are more than a menu can hold. */

const at = (id) => document.getElementById(id);
const WAIT_MILLISECONDS = 250;
const isAdapter = (name) => name.includes("/");

function fill(select, names) {
  const kept = select.value;
  const groups = { "Base models": names.filter((name) => !isAdapter(name)), Adapters: names.filter(isAdapter) };
  if (kept && !names.includes(kept)) groups["Chosen before"] = [kept];
  select.replaceChildren(
    ...Object.entries(groups).filter(([, members]) => members.length).map(([label, members]) => {
      const group = document.createElement("optgroup");
      group.label = label;
      group.append(...members.map((name) => new Option(name, name)));
      return group;
    }),
  );
  if (kept) select.value = kept;
}

export class Models {
  #access = null;
  #selects = [at("model-a"), at("model-b")];
  #asked = 0;
  #timer = 0;

  constructor() {
    const [left, right] = this.#selects;
    left.addEventListener("change", () => {
      if (left.value === right.value) this.#chooseBeside();
    });
    at("find-model").addEventListener("input", () => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#search(at("find-model").value.trim()), WAIT_MILLISECONDS);
    });
  }

  /** Those that this access may use. @returns {Promise<boolean>} whether there are any */
  async load(access) {
    const { names, more, chosen } = await access.models();
    this.#access = access;
    for (const select of this.#selects) select.replaceChildren();
    for (const select of this.#selects) fill(select, names);
    at("find").hidden = !more;
    if (chosen) this.#selects[0].value = chosen;
    this.#chooseBeside();
    return names.length > 0;
  }

  /** Beside an adapter its base model tells most, beside a base model an adapter; the same again tells nothing. */
  #chooseBeside() {
    const [left, right] = this.#selects;
    const names = [...right.options].map((option) => option.value);
    const others = names.filter((name) => name !== left.value);
    right.value = others.find((name) => isAdapter(name) !== isAdapter(left.value)) ?? others.at(-1) ?? left.value;
  }

  get chosen() {
    return this.#selects.filter((select) => !select.closest("[hidden]")).map((select) => select.value);
  }

  async #search(words) {
    const asked = ++this.#asked;
    let found;
    try {
      found = (await this.#access.models(words)).names;
    } catch (error) {
      at("find-note").textContent = error.message;
      return;
    }
    if (asked !== this.#asked) return;
    for (const select of this.#selects) fill(select, found);
    at("find-note").textContent = found.length ? `${found.length} found` : "Nothing was found";
  }
}
