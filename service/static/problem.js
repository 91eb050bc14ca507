// Errors as the service words them, and the question for an API key where the service wants one.
import { key } from "./api.js";

const part = (tag, text, className = "") => Object.assign(document.createElement(tag), { textContent: text, className });

/** Show an error in the alert of the page; null takes it away. `where` says which setting it is about. */
export function show(error, where = "") {
  const box = document.getElementById("problem");
  box.hidden = error === null;
  if (error === null) return;
  const parts = [part("h2", (error.title ?? "This page failed") + where)];
  if (error.errors?.length > 1) {
    const list = part("ul", "");
    list.append(...error.errors.map((fault) => part("li", fault.message)));
    parts.push(list);
  } else parts.push(part("p", error.detail ?? error.message));
  if (error.retryAfter) parts.push(part("p", `Try again in ${error.retryAfter} s.`));
  if (error.requestId) parts.push(part("p", `request ${error.requestId}`, "quiet"));
  if (error.status === 401) parts.push(keyForm());
  box.replaceChildren(...parts);
}

function keyForm() {
  const form = part("form", "", "bar");
  const input = Object.assign(part("input", ""), { type: "password", id: "key", autocomplete: "off", required: true });
  const label = Object.assign(part("label", "API key"), { htmlFor: "key" });
  form.append(label, input, part("button", "Use this key"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(input.value);
    location.reload();
  });
  return form;
}
