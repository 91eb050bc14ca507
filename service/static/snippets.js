// The current request as a shell command and as Python.
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
