// Errors as the service words them.

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
  box.replaceChildren(...parts);
}
