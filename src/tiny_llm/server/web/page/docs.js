// API reference generated from /openapi.json, with a request form per endpoint.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, request, setKey } from "./api.js";

const QUESTION = [{ role: "user", content: "What is the capital of France?" }];
const EXAMPLES = {
  "/v1/chat/completions": { messages: QUESTION },
  "/v1/completions": { prompt: "The capital of France is", max_tokens: 8 },
  "/v1/responses": { input: QUESTION[0].content },
  "/v1/responses/input_tokens": { input: QUESTION[0].content },
  "/v1/messages": { messages: QUESTION, max_tokens: 100 },
  "/v1/messages/count_tokens": { messages: QUESTION },
  "/tokenize": { prompt: QUESTION[0].content },
  "/detokenize": { tokens: [17, 25] },
};
const LIMITS = [
  ["minimum", "≥ #"], ["exclusiveMinimum", "> #"], ["maximum", "≤ #"],
  ["minLength", "at least # characters"], ["minItems", "at least # items"], ["maxItems", "at most # items"],
];

function resolved(schema, schemas) {
  return schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** A schema's alternatives, without null, which every optional field allows. */
function choices(schema) {
  return (schema.anyOf ?? schema.oneOf ?? [schema]).filter((one) => one.type !== "null");
}

/** Describes a value's type and limits. */
function describe(schema, schemas) {
  return choices(schema).map((choice) => {
    const one = resolved(choice, schemas);
    if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(", ");
    if ("const" in one) return JSON.stringify(one.const);
    if (one.anyOf || one.oneOf) return describe(one, schemas);
    if (one.type === "array") return `list of ${describe(one.items ?? {}, schemas)}`;
    const limits = LIMITS.filter(([name]) => name in one && Math.abs(one[name]) <= Number.MAX_SAFE_INTEGER).map(([name, text]) => text.replace("#", one[name]));
    return [one.type ?? "any", ...limits].join(", ");
  }).join(" or ");
}

/** Schemas of the objects a value may be or contain. */
function objects(schema, schemas) {
  return choices(schema).flatMap((choice) => {
    const one = resolved(choice, schemas);
    if (one.anyOf || one.oneOf) return objects(one, schemas);
    if (one.type === "array") return objects(one.items ?? {}, schemas);
    return one.properties ? [one] : [];
  });
}

function Fields({ schema, schemas, depth }) {
  return html`<table class="fields"><tbody>${Object.entries(schema.properties).map(([name, field]) => html`<tr>
    <td><code>${name}</code></td>
    <td>${describe(field, schemas)}${schema.required?.includes(name) && html` <b>required</b>`}
      ${depth < 4 && objects(field, schemas).map((inner) => html`<${Folded} title=${inner.title} text=${inner.description}>
        <${Fields} schema=${inner} schemas=${schemas} depth=${depth + 1} /><//>`)}</td>
  </tr>`)}</tbody></table>`;
}

/** Renders the backquoted parts of a description as code. */
function prose(text) {
  return text?.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

/** Disclosure widget that renders its content only while open. */
function Folded({ title, text, children, kind = "" }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class=${kind} onToggle=${(event) => { if (event.target === event.currentTarget) setOpen(event.currentTarget.open); }}>
    <summary>${title} <span class="quiet">${prose(text)}</span></summary>${isOpen && children}
  </details>`;
}

function Try({ method, path }) {
  const example = EXAMPLES[path];
  const [text, setText] = useState(example ? JSON.stringify(example, null, 2) : "");
  const [output, setOutput] = useState(null);

  async function send() {
    setOutput("…");
    try {
      const response = await request(path, { content: method === "post" ? text : undefined });
      let received = `${response.status}\n\n`;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) setOutput((received += part.value));
    } catch (error) {
      setOutput(error.message);
    }
  }

  return html`<form class="try" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${method === "post" && html`<textarea aria-label="Request body" spellcheck="false" value=${text}
      onInput=${(event) => setText(event.target.value)} />`}
    <button class="main">Send</button>
    ${output !== null && html`<pre role="status">${output}</pre>`}
  </form>`;
}

function Operation({ method, path, operation, schemas }) {
  const body = operation.requestBody?.content["application/json"].schema;
  const title = html`<b>${method.toUpperCase()}</b> <code>${path}</code>`;
  return html`<${Folded} kind="operation" title=${title} text=${operation.description}>
    ${body && html`<${Fields} schema=${resolved(body, schemas)} schemas=${schemas} depth=${0} />`}
    <p class="quiet">${Object.entries(operation.responses).map(([status, one]) => `${status}: ${one.description}`).join(" ")}</p>
    ${!path.includes("{") && html`<${Try} method=${method} path=${path} />`}<//>`;
}

function Docs() {
  const [spec, setSpec] = useState(null);
  useEffect(() => {
    ask("openapi.json").then((response) => response.json()).then(setSpec, (error) => setSpec({ error }));
  }, []);
  if (!spec) return html`<p class="quiet">Loading…</p>`;
  if (spec.error) return html`<p class="error">${spec.error.message}</p>`;
  const operations = Object.entries(spec.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const tags = [...new Set(operations.map(({ operation }) => operation.tags[0]))];
  return html`
    <header><h1>${spec.info.title} ${spec.info.version}</h1><a href="./">Web UI</a><a href="openapi.json">openapi.json</a>
      <label>API key <input type="password" autocomplete="off" placeholder="optional"
        onInput=${(event) => setKey(event.target.value)} /></label></header>
    ${tags.map((tag) => html`<section aria-label=${tag}><h2>${tag}</h2>
      ${operations.filter(({ operation }) => operation.tags[0] === tag).map((one) =>
        html`<${Operation} key=${one.method + one.path} ...${one} schemas=${spec.components.schemas} />`)}</section>`)}`;
}

render(html`<${Docs} />`, document.getElementById("docs"));
