/** What every page of the console needs: questions in a dialog, parts that follow in place, forms sent once. */

import "./dialog.js";
import { renew } from "./in_place.js";
import "./menu.js";
import { localise } from "./times.js";

document.addEventListener("click", (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) copyFrom(document.getElementById(copy.dataset.copy), copy);
});

/** Over plain HTTP from another machine a browser gives no clipboard: then the text is selected, to be copied by hand. */
async function copyFrom(source, button) {
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    button.textContent = "Copied";
  } catch {
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    button.textContent = "Press Ctrl+C";
  }
}

/** A form is sent once, however often its button is pressed; coming back to the page frees it. */
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || event.target.method !== "post") return;
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "yes";
  event.submitter?.setAttribute("aria-busy", "true");
});
window.addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) {
    delete form.dataset.sent;
    form.querySelector("[aria-busy]")?.removeAttribute("aria-busy");
  }
});

/** htmx notes where it is; nothing of that is left to who uses the browser after a sign-out. */
window.addEventListener("pagehide", () => sessionStorage.removeItem("htmx-current-path-for-history"));

/** What looks like a button is pressed like one. */
document.addEventListener("keydown", (event) => {
  if (event.key === " " && event.target.matches("a[role=button]")) {
    event.preventDefault();
    event.target.click();
  }
});

/** What is searched for twice in a row, as on leaving the field or with Enter, is one place to go back from. */
document.addEventListener("htmx:beforeHistoryUpdate", ({ detail: { history: next } }) => {
  if (next.type === "push" && new URL(next.path, location.href).href === location.href) next.type = "replace";
});

document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", document.documentElement.dataset.theme);
});

/** A part that asks for itself again and again is changed in place; htmx would replace it, focus and all. */
document.addEventListener("htmx:beforeSwap", ({ detail }) => {
  const part = detail.requestConfig.elt;
  if (!detail.shouldSwap || part !== detail.target || part.getAttribute("hx-swap") !== "outerHTML") return;
  const fresh = new DOMParser().parseFromString(detail.serverResponse, "text/html").getElementById(part.id);
  if (!fresh) return;
  detail.shouldSwap = false;
  renew(part, fresh);
  htmx.process(part);
  localise(part);
});

document.addEventListener("htmx:afterSwap", (event) => localise(event.detail.target));
document.addEventListener("htmx:afterSettle", (event) => localise(event.detail.elt.parentElement ?? document));
localise(document);
