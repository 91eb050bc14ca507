// The current request for curl, for Python and for the command line.
import { key, stringify } from "./api.js";

const base = () => location.href.replace(/[#?].*$/, "").replace(/\/$/, "");

export function curl(bodies) {
  const shown = key.get() ? ' -H "Authorization: Bearer $PATHLINE_API_KEY"' : ""; // the SDK reads that variable, too
  return bodies
    .map((body) => {
      const json = stringify(body).replaceAll("'", "'\\''");
      return `curl -s ${base()}/v1/sample -H 'Content-Type: application/json'${shown} \\\n  -d '${json}'`;
    })
    .join("\n\n");
}

const quoted = (text) => (/^[\w.,@=+:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** A value of a request as an option takes it: `shift(3)`, `(0,0.5,1)`, `error=0.01,nfe=8`, JSON. */
function optionText(name, value) {
  if (name === "budget") return Object.entries(value).map(([key, limit]) => `${key.replace("max_", "")}=${limit}`).join();
  if (name === "grid" && Array.isArray(value)) return `(${value.join()})`;
  if (name === "grid" && value.name) return `${value.name}(${Object.values(value).slice(1).join()})`;
  return typeof value === "object" ? stringify(value) : String(value);
}

/** The command `pathline sample` for each request. */
export function shell(bodies) {
  return bodies
    .map(({ model, conditions = {}, shape = {}, ...rest }) => {
      const options = Object.entries(rest).filter(([, value]) => value !== undefined);
      const words = options.map(([name, value]) => `--${name.replaceAll("_", "-")} ${quoted(optionText(name, value))}`);
      for (const [name, value] of Object.entries(conditions)) words.push(`--condition ${quoted(`${name}=${stringify(value)}`)}`);
      for (const [name, size] of Object.entries(shape)) words.push(`--shape ${name}=${size}`);
      const address = base() === "http://127.0.0.1:8000" ? [] : [`--url ${base()}`];
      return ["pathline sample", quoted(model), ...words, ...address].join(" ");
    })
    .join("\n\n");
}

function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([k, v]) => `${literal(k)}: ${literal(v)}`).join(", ")}}`;
  return stringify(value);
}

function call({ model, ...rest }) {
  const options = Object.entries(rest).filter(([, value]) => value !== undefined);
  const argument = ([key, value]) => `${key}=${key === "budget" ? `Budget(${Object.entries(value).map(argument).join(", ")})` : literal(value)}`;
  return `client.sample(${[literal(model), ...options.map(argument)].join(", ")})`;
}

export function python(bodies) {
  const names = bodies.some(({ budget }) => budget) ? "Budget, Client" : "Client";
  const head = `from pathline import ${names}\n\nwith Client(${literal(base())}) as client:\n`;
  if (bodies.length === 1) return `${head}    result = ${call(bodies[0])}\nprint(result)\n`;
  const [a, b] = bodies.map((body, k) => `    ${"ab"[k]} = ${call(body)}\n`);
  const apart = "((a.samples - b.samples) ** 2).reshape(len(a.samples), -1).sum(1) ** 0.5";
  return `${head}${a}${b}print(a, b, sep="\\n")\nprint("mean distance", (${apart}).mean())\n`;
}
