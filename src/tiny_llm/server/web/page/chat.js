// The chat panel: messages, input, settings and the streaming request.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { toHtml } from "./markdown.js";
import { ask, events } from "./api.js";

// name, label, step, min, max, tooltip
const NUMBERS = [
  ["temperature", "Temperature", 0.1, 0, 2, "0: greedy decoding"],
  ["top_p", "Top-p", 0.05, 0.05, 1, "nucleus sampling: cumulative probability of the tokens kept"],
  ["top_k", "Top-k", 1, 1, 1000, "number of most likely tokens kept"],
  ["max_tokens", "Max tokens", 1, 1, 1000000, "maximum number of generated tokens, including reasoning"],
  ["seed", "Seed", 1, 0, 2 ** 31, "makes sampling reproducible"],
];

export function Chat({ model, ready, askForKey }) {
  const [messages, setMessages] = useState([]);
  const [running, setRunning] = useState(null); // AbortController of the request in flight
  const [settings, setSettings] = useState({ thinking: true });
  const [text, setText] = useState("");
  const follow = useRef(true);
  const log = useRef();
  const input = useRef();

  useEffect(() => {
    if (follow.current && log.current) log.current.scrollTop = log.current.scrollHeight;
  }, [messages]);

  async function send(history) {
    const abort = new AbortController();
    setRunning(abort);
    follow.current = true;
    const reply = { role: "assistant", content: "", reasoning: "", note: null };
    const show = () => setMessages([...history, { ...reply }]);
    show();
    try {
      const body = request(model, history, settings);
      const response = await ask("v1/chat/completions", { body, signal: abort.signal });
      let frame = null;
      for await (const { data } of events(response)) {
        if (data === "[DONE]") break;
        appendChunk(reply, JSON.parse(data));
        frame ??= requestAnimationFrame(() => { frame = null; show(); });
      }
    } catch (error) {
      if (abort.signal.aborted) reply.note = "stopped";
      else reply.error = error.message || "Server unreachable.";
      if (error.status === 401) askForKey();
    }
    setRunning(null);
    setTimeout(show, 20); // after the last animation frame
    input.current?.focus();
  }

  function submit(event) {
    event?.preventDefault();
    if (!text.trim() || running || !ready) return;
    const history = [...messages, { role: "user", content: text.trim() }];
    setText("");
    send(history);
  }

  function regenerate() {
    const last = messages.findLastIndex((message) => message.role === "user");
    send(messages.slice(0, last + 1));
  }

  function onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape" && running) running.abort();
  }

  return html`<section class="chat panel" aria-label="Chat">
    <div class="log" ref=${log} role="log" aria-live="polite" aria-busy=${running !== null} tabindex="0"
      onScroll=${() => {
        const { scrollTop, clientHeight, scrollHeight } = log.current;
        follow.current = scrollTop + clientHeight > scrollHeight - 40;
      }}>
      ${messages.length === 0 && html`<div class="welcome">
        <h2>Chat with ${model || "the model"}</h2>
        <p>The engine view shows how each response is computed.</p>
      </div>`}
      ${messages.map((message, index) => html`<${Message} key=${index} ...${message}
        streams=${running !== null && index === messages.length - 1} />`)}
    </div>
    <form class="ask" onSubmit=${submit}>
      <label class="hidden" for="prompt">Message</label>
      <textarea id="prompt" ref=${input} rows="2" placeholder="Message" value=${text}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKey}></textarea>
      <div class="row">
        <${Settings} settings=${settings} change=${setSettings} />
        <span class="grow"></span>
        ${messages.length > 0 && !running && html`
          <button type="button" onClick=${() => setMessages([])}>Clear</button>
          <button type="button" onClick=${regenerate}>Regenerate</button>`}
        ${running
          ? html`<button type="button" class="main" onClick=${() => running.abort()}>Stop</button>`
          : html`<button type="submit" class="main" disabled=${!text.trim() || !ready}>Send</button>`}
      </div>
    </form>
  </section>`;
}

function Message({ role, content, reasoning, error, note, usage, streams }) {
  if (role === "user") return html`<article class="message user" aria-label="You">${content}</article>`;
  return html`<article class="message answer" aria-label="Assistant">
    ${reasoning && html`<details class="thoughts" open=${streams && !content}>
      <summary>${streams && !content ? "Thinking…" : "Reasoning"}</summary>
      <div>${reasoning}</div>
    </details>`}
    ${content && html`<div class="markdown" dangerouslySetInnerHTML=${{ __html: toHtml(content) }}></div>`}
    ${streams && !content && !reasoning && html`<span class="typing">…</span>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${(note || usage) && html`<footer>
      ${[note, usage && `${usage.completion_tokens} completion tokens`,
         usage && `${usage.prompt_tokens} prompt tokens, ${cached(usage)} cached`,
         content && !streams && html`<${Copy} text=${content} />`]
        .filter(Boolean).map((part) => html`<span>${part}</span>`)}
    </footer>`}
  </article>`;
}

function Copy({ text }) {
  const [done, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`<button type="button" class="link" onClick=${copy}>${done ? "copied" : "copy"}</button>`;
}

function Settings({ settings, change }) {
  const set = (name, value) => change({ ...settings, [name]: value });
  return html`<details class="settings">
    <summary>Settings</summary>
    <div class="sheet">
      <label>System message
        <textarea rows="2" value=${settings.system || ""}
          onInput=${(event) => set("system", event.target.value)}></textarea>
      </label>
      ${NUMBERS.map(([name, label, step, min, max, tooltip]) => html`<label title=${tooltip}>${label}
        <input type="number" step=${step} min=${min} max=${max} placeholder="default"
          value=${settings[name] ?? ""}
          onInput=${(event) => set(name, event.target.value === "" ? undefined : +event.target.value)} />
      </label>`)}
      <label class="check"><input type="checkbox" checked=${settings.thinking}
        onChange=${(event) => set("thinking", event.target.checked)} /> Enable thinking</label>
    </div>
  </details>`;
}

function request(model, history, settings) {
  const { system, thinking, ...numbers } = settings;
  const prefix = system?.trim() ? [{ role: "system", content: system.trim() }] : [];
  const turns = history
    .filter((message) => message.role === "user" || message.content)
    .map(({ role, content }) => ({ role, content }));
  const params = Object.entries(numbers).filter(([, value]) => value !== undefined);
  return {
    model, messages: [...prefix, ...turns], stream: true, stream_options: { include_usage: true },
    ...Object.fromEntries(params), chat_template_kwargs: { enable_thinking: thinking },
  };
}

function appendChunk(reply, chunk) {
  if (chunk.error) throw new Error(chunk.error.message);
  const choice = chunk.choices?.[0];
  reply.content += choice?.delta?.content ?? "";
  reply.reasoning += choice?.delta?.reasoning_content ?? "";
  if (choice?.finish_reason === "length") reply.note = "truncated at max tokens";
  if (chunk.usage) reply.usage = chunk.usage;
}

function cached(usage) {
  return usage.prompt_tokens_details?.cached_tokens ?? 0;
}
