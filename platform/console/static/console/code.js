/** A request as somebody would write it in a shell or in Python. The key is never in it: it is in the environment. */

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Where there are several, each under its model's name. */
const titled = (bodies, write) =>
  bodies.map((body) => (bodies.length > 1 ? `# ${body.model}\n` : "") + write(body)).join("\n\n");

/** @param {object[]} bodies of requests */
export function curl(origin, bodies) {
  return titled(bodies, (body) => [
    `curl -N ${quoted(`${origin}/v1/chat/completions`)}`,
    '-H "Authorization: Bearer $LORAPLEX_API_KEY"',
    "-H 'Content-Type: application/json'",
    `-d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n  "));
}

/** @param {object[]} bodies of requests */
export function python(origin, bodies) {
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${literal(`${origin}/v1`)}, api_key=os.environ["LORAPLEX_API_KEY"])
${titled(bodies, streamed)}
`;
}

function streamed(body) {
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value, "    ")},`);
  return `stream = client.chat.completions.create(
${fields.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()`;
}

/** A JSON value in Python. JSON's strings and numbers are Python's. */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) {
    if (!value.some((each) => typeof each === "object")) return `[${value.map((each) => literal(each)).join(", ")}]`;
    const lines = value.map((each) => `${indent}    ${literal(each, `${indent}    `)},`);
    return `[\n${lines.join("\n")}\n${indent}]`;
  }
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${literal(name)}: ${literal(each, indent)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
