/** An element with a class and text. Text goes in as text, never as markup. */
export function element(name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}
