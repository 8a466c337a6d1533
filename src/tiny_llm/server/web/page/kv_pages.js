// The pages of the KV cache, one square each: free, held by one request, shared, kept for later.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const STATES = ["own", "shared", "cached", "free"];
const MEANINGS = {
  own: "used by one request", shared: "shared", cached: "cached", free: "free",
};
const CELL = 11; // pixels, with the gap
const LEAST = 64; // pages that are drawn, if there are so many

export function Pages({ run, focus }) {
  const canvas = useRef();
  const [width, setWidth] = useState(300);
  const [cursor, setCursor] = useState(null);
  const columns = Math.max(8, Math.floor(width / CELL));
  // Low numbers are handed out first, so what lies beyond the highest page in use was never used.
  const [highest, setHighest] = useState(0);
  const used = Math.max(-1, ...run.owners.keys(), ...run.tree.pages);
  useEffect(() => { if (used > highest || run.numPages === 0) setHighest(Math.max(used, 0)); }, [used]);
  const wanted = Math.max(LEAST, Math.max(highest, used) + 1);
  const drawn = Math.min(run.numPages, Math.ceil(wanted / columns) * columns);
  const cached = new Set(run.tree.pages);

  function stateOf(page) {
    const owners = run.owners.get(page);
    if (owners) return owners.length > 1 ? "shared" : "own";
    return cached.has(page) ? "cached" : "free";
  }

  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    watch.observe(canvas.current.parentElement);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    const element = canvas.current;
    const height = Math.ceil(drawn / columns) * CELL;
    const scale = window.devicePixelRatio || 1;
    element.width = columns * CELL * scale;
    element.height = height * scale;
    element.style.width = `${columns * CELL}px`;
    element.style.height = `${height}px`;
    const pen = element.getContext("2d");
    pen.scale(scale, scale);
    const colors = getComputedStyle(element);
    for (let page = 0; page < drawn; page++) {
      const x = (page % columns) * CELL, y = Math.floor(page / columns) * CELL;
      const state = stateOf(page);
      const isFaint = focus !== null && !run.owners.get(page)?.includes(focus);
      pen.globalAlpha = isFaint && state !== "free" ? 0.3 : 1;
      pen.fillStyle = colors.getPropertyValue(`--${state}`);
      pen.fillRect(x, y, CELL - 2, CELL - 2);
      if (state === "shared") { // not by colour alone
        pen.fillStyle = colors.getPropertyValue("--panel");
        pen.fillRect(x + 3, y + 3, CELL - 8, CELL - 8);
      }
      if (page === cursor) {
        pen.strokeStyle = colors.getPropertyValue("--text");
        pen.strokeRect(x - 0.5, y - 0.5, CELL - 1, CELL - 1);
      }
    }
  });

  function pageAt(event) {
    const page = Math.floor(event.offsetY / CELL) * columns + Math.floor(event.offsetX / CELL);
    return page >= 0 && page < drawn ? page : null;
  }

  function onKey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    if (!(event.key in moves) || drawn === 0) return;
    event.preventDefault();
    setCursor(Math.min(Math.max((cursor ?? 0) + (cursor === null ? 0 : moves[event.key]), 0), drawn - 1));
  }

  const counts = run.pages;
  const numbers = counts && { own: counts.used - counts.shared, shared: counts.shared, cached: counts.cached, free: counts.free };
  const summary = numbers ? STATES.map((state) => `${numbers[state]} ${MEANINGS[state]}`).join(", ") : "not known yet";
  return html`<div class="pages">
    <ul class="legend">${STATES.map((state) => html`<li><i class=${state}></i>${numbers ? numbers[state] : "–"} ${MEANINGS[state]}</li>`)}</ul>
    <div><canvas ref=${canvas} tabindex="0" role="img" aria-label=${`Pages: ${summary}`}
      onMouseMove=${(event) => setCursor(pageAt(event))} onMouseLeave=${() => setCursor(null)}
      onBlur=${() => setCursor(null)} onKeyDown=${onKey}></canvas></div>
    <p class="told" role="status">${cursor === null ? about(run, drawn) : told(run, cursor, stateOf(cursor))}</p>
  </div>`;
}

function about(run, drawn) {
  if (!run.numPages) return run.pages ? "This recording has page counts only." : "";
  const rest = run.numPages - drawn;
  const size = `A page holds ${run.pageSize} tokens. `;
  return size + (rest > 0 ? `${rest.toLocaleString("en")} more free pages not shown.` : "");
}

function told(run, page, state) {
  const owners = run.owners.get(page) ?? [];
  const whom = owners.length ? `: ${owners.slice(0, 8).join(", ")}${owners.length > 8 ? " …" : ""}` : "";
  return `Page ${page} is ${MEANINGS[state]}${whom}.`;
}
