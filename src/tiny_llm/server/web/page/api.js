// Talking to the server: the key, streams of events, and the errors that it tells.

let key = ""; // lives as long as the page: nothing is stored

export function setKey(value) {
  key = value.trim();
}

/** An answer that is not 2xx: `status`, and the server's own sentence as the message. */
export class HttpError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Sends a request, with `content`, which is JSON, if there is any; the answer may be an error. */
export function request(path, { content, signal } = {}) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (content !== undefined) headers["Content-Type"] = "application/json";
  return fetch(path, { headers, signal, method: content === undefined ? "GET" : "POST", body: content });
}

/** Sends a request, with `body` as JSON, if there is any. */
export async function ask(path, { body, signal } = {}) {
  const response = await request(path, { content: body === undefined ? undefined : JSON.stringify(body), signal });
  if (!response.ok) throw new HttpError(response.status, await sentence(response));
  return response;
}

async function sentence(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

/** The server-sent events of a response: {name, data}, data as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const found = parsed(text.slice(0, end));
        text = text.slice(end + 2);
        if (found) yield found;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}

const texts = new Map(); // of tokens, by their ids

/** The text of tokens; `again` is called when it has come. */
export function textOf(ids, again) {
  const name = ids.join(",");
  if (!texts.has(name)) {
    texts.set(name, null);
    ask("detokenize", { body: { tokens: ids } })
      .then((response) => response.json())
      .then((found) => { texts.set(name, found.prompt); again(); })
      .catch(() => {});
  }
  return texts.get(name);
}
