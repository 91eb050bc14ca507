// Errors as the service words them, and the question for an API key where the service wants one.
import { key } from "./api.js";
import { $, make } from "./dom.js";

/**
 * Show an error in the alert of the page; null takes it away.
 * @param options `where` says which setting it is about; `action` is a button that may help
 */
export function show(error, { where = "", action = null } = {}) {
  const box = $("problem");
  box.hidden = error === null;
  if (error === null) return;
  const parts = [make("h2", {}, (error.title ?? "This page failed") + where)];
  if (error.errors?.length > 1) parts.push(make("ul", {}, ...error.errors.map((fault) => make("li", {}, fault.message))));
  else parts.push(make("p", {}, error.detail ?? error.message));
  if (error.retryAfter) parts.push(make("p", {}, `Try again in ${error.retryAfter} s.`));
  if (error.requestId) parts.push(make("p", { class: "quiet" }, `request ${error.requestId}`));
  if (error.status === 401) parts.push(keyForm());
  if (action) parts.push(action);
  box.replaceChildren(...parts);
}

function keyForm() {
  const input = make("input", { type: "password", id: "key", autocomplete: "off", required: "" });
  const form = make("form", { class: "bar" }, make("label", { for: "key" }, "API key"), input, make("button", {}, "Use this key"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(input.value);
    location.reload();
  });
  return form;
}
