// HTTP client: API key, server-sent events, errors.

let key = ""; // API key; kept in memory only

export function setKey(value) {
  key = value.trim();
}

/** Error for a non-2xx response: its status and the server's message. */
export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Sends a request, with `content` (JSON text) as the body if given; does not check the status. */
export function request(path, { content, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (content !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { headers, signal, method: content === undefined ? "GET" : "POST", body: content });
}

/** Sends a request, with `body` as JSON if given; throws HttpError unless the status is 2xx. */
export async function ask(path, { body, signal } = {}) {
  const response = await request(path, { content: body === undefined ? undefined : JSON.stringify(body), signal });
  if (!response.ok) throw new HttpError(response.status, await errorMessage(response));
  return response;
}

async function errorMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server responded with status ${response.status}.`;
  }
}

/** Yields a response's server-sent events as {name, data}; data is text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const event = parseEvent(text.slice(0, end));
        text = text.slice(end + 2);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}

const texts = new Map(); // model and joined token ids -> text; null while pending

/** Returns the text of a model's tokens; null until it arrives, when `refresh` is called. */
export function textOf(model, ids, refresh) {
  const key = `${model}:${ids.join(",")}`;
  if (!texts.has(key)) {
    texts.set(key, null);
    ask("detokenize", { body: { model: model || null, tokens: ids } })
      .then((response) => response.json())
      .then((detokenized) => { texts.set(key, detokenized.prompt); refresh(); })
      .catch(() => {});
  }
  return texts.get(key);
}
