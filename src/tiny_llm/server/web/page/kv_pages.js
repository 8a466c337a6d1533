// KV cache pages, one square each: used by one request, shared, cached or free. A dot marks pages
// with a checkpoint of the recurrent state, for models that have one.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const STATES = ["own", "shared", "cached", "free"];
const LABELS = {
  own: "used by one request", shared: "shared", cached: "cached", free: "free",
};
const CELL = 11; // pixels, including the gap
const MIN_DRAWN = 64; // minimum number of pages drawn

export function Pages({ run, focus }) {
  const canvas = useRef();
  const [width, setWidth] = useState(300);
  const [cursor, setCursor] = useState(null);
  const columns = Math.max(8, Math.floor(width / CELL));
  // Low page numbers are allocated first: pages above the highest one used so far are free.
  const [highest, setHighest] = useState(0);
  const used = Math.max(-1, ...run.owners.keys(), ...run.tree.pages);
  useEffect(() => { if (used > highest || run.numPages === 0) setHighest(Math.max(used, 0)); }, [used]);
  const wanted = Math.max(MIN_DRAWN, Math.max(highest, used) + 1);
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
      if (state === "shared") { // distinguishable without color
        pen.fillStyle = colors.getPropertyValue("--panel");
        pen.fillRect(x + 3, y + 3, CELL - 8, CELL - 8);
      }
      if (run.checkpoints.has(page)) {
        pen.fillStyle = colors.getPropertyValue("--text");
        pen.fillRect(x + 3.5, y + 3.5, 2, 2);
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
  const summary = numbers ? STATES.map((state) => `${numbers[state]} ${LABELS[state]}`).join(", ") : "no data yet";
  return html`<div class="pages">
    <ul class="legend">${STATES.map((state) => html`<li><i class=${state}></i>${numbers ? numbers[state] : "–"} ${LABELS[state]}</li>`)}</ul>
    <div><canvas ref=${canvas} tabindex="0" role="img" aria-label=${`Pages: ${summary}`}
      onMouseMove=${(event) => setCursor(pageAt(event))} onMouseLeave=${() => setCursor(null)}
      onBlur=${() => setCursor(null)} onKeyDown=${onKey}></canvas></div>
    <p class="page-info" role="status">${cursor === null ? sizeInfo(run, drawn) : pageInfo(run, cursor, stateOf(cursor))}</p>
    ${run.states && html`<p class="states">${stateInfo(run.states)}</p>`}
  </div>`;
}

function sizeInfo(run, drawn) {
  if (!run.numPages) return run.pages ? "This recording contains page counts only." : "";
  const hidden = run.numPages - drawn;
  const size = `${run.pageSize} tokens per page.`;
  return hidden > 0 ? `${size} ${hidden.toLocaleString("en")} free pages not shown.` : size;
}

function pageInfo(run, page, state) {
  const owners = run.owners.get(page) ?? [];
  const end = run.checkpoints.has(page) ? ", with a checkpoint." : ".";
  if (!owners.length) return `Page ${page} is ${LABELS[state]}${end}`;
  const ids = `${owners.slice(0, 8).join(", ")}${owners.length > 8 ? ", …" : ""}`;
  return owners.length === 1 ? `Page ${page} is used by request ${ids}${end}` : `Page ${page} is shared by requests ${ids}${end}`;
}

/** Recurrent state slots and checkpoints in one sentence. */
function stateInfo({ free, cached, used, checkpoints }) {
  const noun = checkpoints === 1 ? "checkpoint" : "checkpoints";
  return `State slots: ${used} of ${free + cached + used} used by requests, ${free} free; ${checkpoints} ${noun} (•).`;
}
