/** The menu of a narrow screen: over the page, under the bar, wherever one has scrolled to. */

const button = document.getElementById("menu-button");
const opened = () => document.body.classList.contains("menu-open");

function show(open) {
  document.documentElement.style.setProperty("--bar-height", `${button.closest(".bar").offsetHeight}px`);
  document.body.classList.toggle("menu-open", open);
  button.setAttribute("aria-expanded", String(open));
}

button.addEventListener("click", () => show(!opened()));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !opened()) return;
  show(false);
  button.focus();
});
document.addEventListener("click", (event) => {
  if (opened() && !event.target.closest(".bar, #menu")) show(false);
});
