// The service's HTTP interface as functions. Seeds go up to 2^63 - 1, more than a JavaScript number holds, so they are BigInt throughout.

// In JSON text, a quote inside a string is always escaped, so `"seed":` followed by digits can only be a member.
const WHOLE = /"(seed|first_index)":\s*(-?\d+)(?=\s*[,}])/g;

const UNEXPLAINED = "The answer may come from a proxy in front of the service. Draw again; if this persists, see the service's log.";

/** An error response in the service's words, or one line of our own if it sent none. */
export class Problem extends Error {
  constructor(title, detail = "", { errors = [], requestId = "", retryAfter = null, status = 0 } = {}) {
    super(detail || title);
    Object.assign(this, { title, detail, errors, requestId, retryAfter, status });
  }

  static of(body, status) {
    if (!body?.title) return new Problem(`No valid response received (status ${status})`, UNEXPLAINED, { status });
    const { title, detail, errors, request_id: requestId, retry_after_s: retryAfter } = body;
    return new Problem(title, detail, { errors, requestId, retryAfter, status });
  }
}

export const parse = (text) => revive(JSON.parse(text.replace(WHOLE, '"$1":"$2"')));

function revive(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value; // arrays hold numbers only
  for (const [key, member] of Object.entries(value)) {
    const whole = (key === "seed" || key === "first_index") && /^-?\d+$/.test(member);
    value[key] = whole ? BigInt(member) : revive(member);
  }
  return value;
}

/** JSON with BigInt as plain integers, spaced as people write it. */
export function stringify(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(stringify).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return `{${members.map(([key, member]) => `${JSON.stringify(key)}: ${stringify(member)}`).join(", ")}}`;
}

/** Dispatches "lost" when the service did not answer or its answer broke off. */
export const connection = new EventTarget();

/** A fault of the connection: no status, because nothing answered. */
function lost(title, detail) {
  connection.dispatchEvent(new Event("lost"));
  return new Problem(title, detail);
}

/** The API key of this tab, if the service asks for one; it is forgotten when the tab is closed. */
export const key = {
  get: () => sessionStorage.getItem("pathline-key") ?? "",
  set: (value) => sessionStorage.setItem("pathline-key", value),
};

async function ask(path, options = {}) {
  const shown = key.get() && { Authorization: `Bearer ${key.get()}` };
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, ...shown } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost("The service cannot be reached", "Is it running? Start it with `make serve`; this page connects automatically.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // something between us and the service answered
  }
  throw Problem.of(body, response.status);
}

const post = (path, body, signal, accept) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: accept },
    body: stringify(body),
    signal,
  });

export const get = async (path) => parse(await (await ask(path)).text());

export const sample = async (body, signal) =>
  parse(await (await post("v1/sample", body, signal, "application/json")).text());

/** Ask again, a few times, while the service is at capacity. */
async function patiently(ask, signal) {
  for (let tries = 3; ; tries--) {
    try {
      return await ask();
    } catch (error) {
      if (error.status !== 429 || tries <= 0) throw error;
      await pause((error.retryAfter ?? 1) * 1e3, signal);
    }
  }
}

/** Draw samples in the background: other requests go first. */
export const background = (body, signal) => patiently(() => sample({ ...body, priority: "bulk", trace: "none" }, signal), signal);

const pause = (milliseconds, signal) =>
  new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });

/** The arrays of a response as a file: `accept` is a media type such as application/x-npz. */
export const file = async (body, accept) => (await post("v1/sample", body, undefined, accept)).blob();

/** Ask an operation of a model: encode, log_prob or diagnose. */
export const operation = async (model, name, body, signal) =>
  parse(await (await post(`v1/models/${encodeURIComponent(model)}/${name}`, body, signal, "application/json")).text());

/** The events of a drawing. @param patient whether to ask again while the service is at capacity */
export const stream = (body, signal, patient) => events("v1/sample/stream", body, signal, patient);

/** The events of a measurement of solvers on a model, in the background. */
export const measure = (model, body, signal) => events(`v1/models/${encodeURIComponent(model)}/frontier`, body, signal, true);

/** Yield {event, data} of a stream; an `error` event is thrown as a Problem. */
async function* events(path, body, signal, patient) {
  const ask = () => post(path, body, signal, "text/event-stream");
  const response = await (patient ? patiently(ask, signal) : ask());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const value = await next(reader);
    if (value === null) return;
    let from = Math.max(0, buffer.length - 1); // an event ends with an empty line; the text before has none
    buffer += value;
    for (let end; (end = buffer.indexOf("\n\n", from)) >= 0; from = 0) {
      const message = event(buffer.slice(0, end));
      buffer = buffer.slice(end + 2);
      if (message?.event === "error") throw Problem.of(message.data, message.data?.status);
      if (message) yield message;
    }
  }
}

async function next(reader) {
  try {
    const { value, done } = await reader.read();
    return done ? null : value;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw lost("The connection to the service was lost", "The samples received so far are shown. Draw again to get the rest.");
  }
}

function event(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event: name, data: parse(data.join("\n")) } : null; // a comment keeps the line open
}
