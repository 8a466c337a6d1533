// The prefix cache as a radix tree: shared prefixes and the requests that use them.

import { html } from "./vendor/preact-htm.js";
import { textOf } from "./api.js";

const MAX_LINES = 60;

export function Tree({ run, model, focus, setFocus, refresh, hasServer }) {
  const { branches, hidden } = outline(run);
  if (!branches.length) return html`<p class="none">The prefix cache is empty.</p>`;
  return html`<ul class="tree">
    ${branches.map((one) => html`<${Branch} key=${one.page} one=${one} run=${run} model=${model} focus=${focus}
      setFocus=${setFocus} refresh=${refresh} hasServer=${hasServer} />`)}
  </ul>${hidden > 0 && html`<p class="none">${hidden} more branches not shown.</p>`}`;
}

function Branch({ one, run, model, focus, setFocus, refresh, hasServer }) {
  const label = run.tree.labels[one.page];
  const text = label && hasServer ? textOf(model, label, refresh) : null;
  const tokens = one.count * run.pageSize;
  return html`<li>
    <span class="branch">
      <b>${one.count} ${one.count === 1 ? "page" : "pages"}</b>
      ${text && html`<q title=${`${tokens} tokens, starting at page ${one.page}`}>${excerpt(text)}</q>`}
      ${one.readers.length
        ? one.readers.slice(0, 12).map((id) => html`<button type="button" class=${focus === id ? "reader on" : "reader"}
            onMouseEnter=${() => setFocus(id)} onMouseLeave=${() => setFocus(null)}
            onFocus=${() => setFocus(id)} onBlur=${() => setFocus(null)}
            aria-label=${`used by request ${id}`}>${id}</button>`)
        : html`<span class="quiet">cached</span>`}
      ${one.readers.length > 12 && html`<span class="quiet">+${one.readers.length - 12} more</span>`}
    </span>
    ${one.children.length > 0 && html`<ul>${one.children.map((child) => html`<${Branch} key=${child.page}
      one=${child} run=${run} model=${model} focus=${focus} setFocus=${setFocus} refresh=${refresh} hasServer=${hasServer} />`)}</ul>`}
  </li>`;
}

/** Collapses each chain of pages that the same requests use into one line. */
export function outline(run) {
  const children = new Map();
  run.tree.pages.forEach((page, index) => {
    const parent = run.tree.parents[index];
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(page);
  });
  const readersOf = (page) => run.owners.get(page) ?? [];
  let lines = 0, hidden = 0;
  function branch(first) {
    if (lines >= MAX_LINES) { hidden += 1; return null; }
    lines += 1;
    const readers = readersOf(first);
    let last = first, count = 1;
    for (;;) {
      const next = children.get(last) ?? [];
      if (next.length !== 1 || !same(readersOf(next[0]), readers)) break;
      last = next[0];
      count += 1;
    }
    const below = (children.get(last) ?? []).sort((a, b) => a - b).map(branch).filter(Boolean);
    return { page: first, count, readers, children: below };
  }
  const branches = (children.get(-1) ?? []).sort((a, b) => a - b).map(branch).filter(Boolean);
  return { branches, hidden };
}

function same(a, b) {
  return a.length === b.length && a.every((id, index) => id === b[index]);
}

function excerpt(text) {
  const line = text.replace(/<\|\w+\|>/g, " ").replace(/\s+/g, " ").trim(); // without special tokens
  return line.length > 60 ? `${line.slice(0, 60)}…` : line;
}
