/** Bring what stands on the page up to date with what the server says now, in place.

    What is the same stays the same node, so that the keyboard's focus, how far a wide table is scrolled, a selected text
    and an opened fold outlive an update that comes every few seconds.
*/

/** What a node is among its siblings: nodes with different ones are never made into each other, so that a link under the
    focus never turns into another one. */
function key(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return node.nodeName;
  if (node.id) return `${node.nodeName}#${node.id}`;
  return `${node.nodeName} ${node.getAttribute("aria-label") ?? ""} ${subject(node) ?? ""}`;
}

/** What a link leads to, and what a row of a table is about: what its first link leads to, or its first cell says. */
function subject(node) {
  if (node.matches("a")) return node.getAttribute("href");
  if (!node.matches("tr")) return null;
  return node.querySelector("a[href]")?.getAttribute("href") ?? node.cells[0]?.textContent.trim();
}

function update(node, fresh) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    if (node.data !== fresh.data) node.data = fresh.data;
    return;
  }
  if (node.isEqualNode(fresh)) return;
  for (const { name } of [...node.attributes]) {
    if (!fresh.hasAttribute(name) && !readers(node, name)) node.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (node.getAttribute(name) !== value && !readers(node, name)) node.setAttribute(name, value);
  }
  updateChildren(node, fresh);
}

/** Whether a fold is open is the reader's choice. */
function readers(node, name) {
  return name === "open" && node.matches("details");
}

function updateChildren(node, fresh) {
  const old = new Map();
  for (const child of node.childNodes) {
    const found = old.get(key(child));
    if (found) found.push(child);
    else old.set(key(child), [child]);
  }
  const wanted = [...fresh.childNodes].map((child) => {
    const kept = old.get(key(child))?.shift();
    if (kept) update(kept, child);
    return kept ?? document.importNode(child, true);
  });
  // First what is gone: then whatever stays in its order need not be moved, which would take the focus from it.
  for (const child of [...old.values()].flat()) child.remove();
  let next = node.firstChild;
  for (const child of wanted) {
    if (child === next) next = next.nextSibling;
    else if (child.parentNode === node && node.moveBefore) node.moveBefore(child, next);
    else node.insertBefore(child, next);
  }
}

/** Where what had the focus is gone, the focus goes to what it was in, so that Tab goes on from there. */
function keepingFocus(within, act) {
  const around = [];
  for (let at = document.activeElement; at && within.contains(document.activeElement); at = at.parentElement) around.push(at);
  act();
  if (around.length && !around[0].isConnected) {
    around.find((each) => each.isConnected && each.hasAttribute("tabindex"))?.focus({ preventScroll: true });
  }
}

/** Make an element what `fresh`, another of its kind, is. */
export function renew(element, fresh) {
  keepingFocus(element, () => update(element, fresh));
}

/** Make what is in an element what `html` says. */
export function renewContent(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  keepingFocus(element, () => updateChildren(element, template.content));
}
