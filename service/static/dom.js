// Elements of the page: finding and making them.

/** @param {string} id */
export const $ = (id) => document.getElementById(id);

/** Make an element: `class`, `for` and the like are attributes; children are elements or texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** A button that does something when it is pressed. */
export function button(text, action, attributes = {}) {
  const element = make("button", { type: "button", ...attributes }, text);
  element.addEventListener("click", action);
  return element;
}

/** The name of a column with its unit, as in price [EUR]. */
export const titled = ({ name, unit }) => (unit ? `${name} [${unit}]` : name);
