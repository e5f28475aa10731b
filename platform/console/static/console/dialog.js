/** Questions in a dialog: a link with data-dialog opens what it leads to there; with ctrl, or without this script, as a
    page. The dialog only ever shows what the link last followed led to, be it an error. */

import { localise } from "./times.js";

const dialog = document.getElementById("dialog");
const body = document.getElementById("dialog-body");
let asking;

async function open(link) {
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  body.replaceChildren();
  link.setAttribute("aria-busy", "true");
  try {
    const shown = await ask(link.href, signal);
    if (signal.aborted || !shown) return;
    body.replaceChildren(shown);
    localise(body);
    dialog.setAttribute("aria-label", body.querySelector("h1").textContent);
    if (!dialog.open) dialog.showModal();
  } finally {
    link.removeAttribute("aria-busy");
  }
}

/** What is to be shown; nothing where the whole page goes elsewhere, or another question is asked meanwhile. */
async function ask(url, signal) {
  try {
    const headers = { "HX-Request": "true", "HX-Target": "dialog-body" };
    const answer = await fetch(url, { headers, signal });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const part = page.querySelector(".question, .trouble");
    if (part) return closable(part);
    if (!answer.ok) return said("dialog-failed");
    location.assign(answer.headers.get("HX-Redirect") ?? answer.url); // signed out, or no question
    return null;
  } catch {
    return signal.aborted ? null : said("dialog-unreachable");
  }
}

/** Errors that were written to be a page of their own have no button to close them with. */
function closable(part) {
  if (!part.querySelector("[data-close]")) part.append(said("dialog-failed").querySelector(".buttons"));
  return part;
}

function said(id) {
  return document.getElementById(id).content.cloneNode(true);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    open(link);
  }
  if (event.target === dialog || (event.target.closest("[data-close]") && dialog.open)) {
    event.preventDefault();
    dialog.close();
  }
});
dialog.addEventListener("close", () => body.replaceChildren());
