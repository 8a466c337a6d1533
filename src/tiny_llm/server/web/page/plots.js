// Plots of throughput, time to first token and inter-token latency.

import { html, useEffect, useRef } from "./vendor/preact-htm.js";
import uPlot from "./vendor/uplot.js";

const SECONDS = 60; // x-axis range
const BIN = 0.5; // bin width in seconds
const HEIGHT = 120;

export function Plots({ run, now }) {
  const bins = Math.round(SECONDS / BIN);
  const end = Math.floor(now / BIN);
  const x = Array.from({ length: bins }, (_, index) => (index - bins + 1) * BIN);
  const at = (time) => Math.floor(time / BIN) - end + bins - 1;

  const tokens = new Array(bins).fill(0);
  for (const one of run.tokenSamples) if (at(one.time) in tokens) tokens[at(one.time)] += one.tokens / BIN;
  const first = means(run.ttftSamples, at, bins), gap = means(run.itlSamples, at, bins);
  return html`<div class="plots">
    <${Plot} label="tokens per second" data=${[x, tokens]} names=${["tokens/s"]} colors=${["--own"]} filled />
    <${Plot} label="time to first token and inter-token latency, ms" data=${[x, first, gap]}
      names=${["TTFT", "ITL"]} colors=${["--shared", "--own"]} />
  </div>`;
}

function means(list, at, bins) {
  const sums = new Array(bins).fill(0), counts = new Array(bins).fill(0);
  for (const one of list) {
    const bin = at(one.time);
    if (bin >= 0 && bin < bins) { sums[bin] += one.seconds * 1000; counts[bin] += 1; }
  }
  return sums.map((sum, bin) => (counts[bin] ? sum / counts[bin] : null));
}

function Plot({ label, data, names, colors, filled }) {
  const place = useRef();
  const plot = useRef(null);

  useEffect(() => {
    function build() {
      plot.current?.destroy();
      const style = getComputedStyle(place.current);
      const text = style.getPropertyValue("--quiet"), grid = { stroke: style.getPropertyValue("--line"), width: 1 };
      const axis = { stroke: text, grid, ticks: grid, font: "11px system-ui, sans-serif" };
      const series = names.map((name, index) => {
        const color = style.getPropertyValue(colors[index]);
        return {
          label: name, stroke: color, width: 1.5, fill: filled ? `${color}33` : undefined,
          spanGaps: true, points: { show: !filled, size: 4 },
        };
      });
      plot.current = new uPlot({
        width: place.current.clientWidth, height: HEIGHT, legend: { show: false }, cursor: { show: false },
        scales: { x: { time: false }, y: { range: (_, min, max) => [0, Math.max(1, max * 1.1)] } },
        axes: [{ ...axis, size: 26, values: (_, ticks) => ticks.map((tick) => `${tick} s`) }, { ...axis, size: 44 }],
        series: [{}, ...series],
      }, data, place.current);
    }
    build();
    const sizes = new ResizeObserver(([entry]) => plot.current.setSize({ width: entry.contentRect.width, height: HEIGHT }));
    sizes.observe(place.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", build);
    return () => { sizes.disconnect(); dark.removeEventListener("change", build); plot.current.destroy(); };
  }, []);

  useEffect(() => plot.current?.setData(data));

  const latest = names.map((name, index) => {
    const values = data[index + 1].filter((value) => value !== null);
    return `${name} ${values.length ? Math.round(values.at(-1)) : "–"}`;
  });
  return html`<figure>
    <figcaption>${names.map((name, index) => html`<span><i class=${colors[index].slice(2)}></i>${latest[index]}${filled ? "" : " ms"}</span>`)}</figcaption>
    <div ref=${place} role="img" aria-label=${`Plot of ${label}: ${latest.join(", ")}`}></div>
  </figure>`;
}
