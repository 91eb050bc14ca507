// Errors in the words of the page, and the field for an API key if the service requires one.
import { key } from "./api.js";
import { $, make } from "./dom.js";
import { catalogue, titled } from "./view.js";

/** Fields of the HTTP interface that the page calls by another name. */
const NAMES = {
  num_samples: "How many", timeout_s: "the time limit", on_timeout: "late samples", save_at: "Grid",
};
const inWords = (text) => text.replace(/\b[a-z]+_[a-z]+\b/g, (name) => NAMES[name] ?? (name in catalogue.settings ? titled(name) : name));

/** Details that the page words better than the service, which does not know that a person reads them. */
const DETAILS = {
  401: () =>
    key.get()
      ? "The service does not accept this API key. Check it, or ask the people who run the service."
      : "The people who run this service can give you one. It is kept in this tab only, and forgotten when you close it.",
  504: () => "The samples were not finished within the time limit. Draw fewer, take fewer steps or a larger tolerance, or allow more time.",
};

/** An error in one line, for places that have no room for more. */
export function line(error) {
  if (!error.status && error.title) return error.title;
  return inWords(DETAILS[error.status]?.() ?? (error.detail || error.title || error.message));
}

/**
 * Show an error in the alert of the page; null hides it.
 * @param options `where` names the setting it is about; `action` is a button that may help; `good` marks good news
 */
export function show(error, { where = "", action = null, good = false } = {}) {
  const box = $("problem");
  box.hidden = error === null;
  box.classList.toggle("good", good);
  if (error === null) return;
  const parts = [make("h2", {}, inWords(error.title ?? "This page failed") + where)];
  const detail = inWords(DETAILS[error.status]?.() ?? error.detail ?? error.message);
  if (error.errors?.length > 1) parts.push(make("ul", {}, ...error.errors.map((fault) => make("li", {}, inWords(fault.message)))));
  else if (detail) parts.push(make("p", {}, detail));
  if (error.retryAfter && !/try again/i.test(detail)) parts.push(make("p", {}, `Try again in ${Math.ceil(error.retryAfter)} s.`));
  if (error.requestId) parts.push(make("p", { class: "quiet" }, `request ${error.requestId}`));
  if (error.status === 401) parts.push(keyForm());
  if (action) parts.push(action);
  box.replaceChildren(...parts);
}

/** A field for an API key; the page is then loaded again with the key. */
export function keyForm() {
  const input = make("input", { type: "password", id: "key", autocomplete: "off", required: "" });
  const form = make("form", { class: "bar" }, make("label", { for: "key" }, "API key"), input, make("button", {}, "Use this key"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(input.value.trim());
    location.reload();
  });
  return form;
}
