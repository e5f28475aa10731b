/** A slider beside each number field that asks for one (data-slider holds its label); the field alone is sent. */

for (const field of document.querySelectorAll("input[type=number][data-slider]")) {
  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = field.min;
  slider.max = field.max;
  slider.value = field.value;
  slider.setAttribute("aria-label", field.dataset.slider);
  slider.addEventListener("input", () => { field.value = slider.value; });
  field.addEventListener("input", () => { slider.value = field.value; });
  field.before(slider);
}
