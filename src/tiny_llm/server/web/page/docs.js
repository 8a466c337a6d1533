// The endpoints and their fields, as /openapi.json tells them. Each endpoint can be tried.

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
  ["minimum", "at least"], ["exclusiveMinimum", "above"], ["maximum", "at most"],
  ["minLength", "characters at least"], ["minItems", "elements at least"], ["maxItems", "elements at most"],
];

/** The schema that a reference means; null itself if it is null. */
function resolved(schema, schemas) {
  return schema?.$ref ? schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** The schemas that a value may have, without null, which every optional field may be. */
function choices(schema) {
  return (schema.anyOf ?? schema.oneOf ?? [schema]).filter((one) => one.type !== "null");
}

/** What a value may be, in words. */
function inWords(schema, schemas) {
  return choices(schema).map((choice) => {
    const one = resolved(choice, schemas);
    if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(", ");
    if ("const" in one) return JSON.stringify(one.const);
    if (one.anyOf || one.oneOf) return inWords(one, schemas);
    if (one.type === "array") return `list of ${inWords(one.items ?? {}, schemas)}`;
    const limits = LIMITS.filter(([name]) => name in one).map(([name, words]) => `${words} ${one[name]}`);
    return [one.type ?? "any value", ...limits].join(", ");
  }).join(" or ");
}

/** The objects with fields of their own that a value may be, or contain. */
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
    <td>${inWords(field, schemas)}${schema.required?.includes(name) && html` <b>required</b>`}
      ${depth < 4 && objects(field, schemas).map((inner) => html`<${Folded} title=${inner.title} text=${inner.description}>
        <${Fields} schema=${inner} schemas=${schemas} depth=${depth + 1} /><//>`)}</td>
  </tr>`)}</tbody></table>`;
}

/** Something that is drawn when it is opened. */
function Folded({ title, text, children, kind = "" }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class=${kind} onToggle=${(event) => { if (event.target === event.currentTarget) setOpen(event.currentTarget.open); }}>
    <summary>${title} <span class="quiet">${text}</span></summary>${isOpen && children}
  </details>`;
}

function Try({ method, path }) {
  const example = EXAMPLES[path];
  const [text, setText] = useState(example ? JSON.stringify(example, null, 2) : "");
  const [told, setTold] = useState(null);

  async function send() {
    setTold("…");
    try {
      const response = await request(path, { content: method === "post" ? text : undefined });
      let answer = `${response.status}\n\n`;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) setTold((answer += part.value));
    } catch (error) {
      setTold(error.message);
    }
  }

  return html`<form class="try" onSubmit=${(event) => { event.preventDefault(); send(); }}>
    ${method === "post" && html`<textarea aria-label="Body of the request" spellcheck="false" value=${text}
      onInput=${(event) => setText(event.target.value)} />`}
    <button class="main">Send</button>
    ${told !== null && html`<pre role="status">${told}</pre>`}
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
  const [found, setFound] = useState(null);
  useEffect(() => {
    ask("openapi.json").then((response) => response.json()).then(setFound, (error) => setFound({ error }));
  }, []);
  if (!found) return html`<p class="quiet">loading …</p>`;
  if (found.error) return html`<p class="error">${found.error.message}</p>`;
  const operations = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const tags = [...new Set(operations.map(({ operation }) => operation.tags[0]))];
  return html`
    <header><h1>${found.info.title} ${found.info.version}</h1><a href="./">Web UI</a><a href="openapi.json">openapi.json</a>
      <label>key <input type="password" autocomplete="off" placeholder="if the server has one"
        onInput=${(event) => setKey(event.target.value)} /></label></header>
    ${tags.map((tag) => html`<section aria-label=${tag}><h2>${tag}</h2>
      ${operations.filter(({ operation }) => operation.tags[0] === tag).map((one) =>
        html`<${Operation} key=${one.method + one.path} ...${one} schemas=${found.components.schemas} />`)}</section>`)}`;
}

render(html`<${Docs} />`, document.getElementById("docs"));
