// Requests that run, those that wait, and the engine in words.

import { html } from "./vendor/preact-htm.js";

const NAMES = {
  waiting: "waits", preempted: "waits: gave up its pages", prefill: "reads the prompt",
  decode: "answers", ended: "ended",
};

export function Requests({ run, focus, setFocus }) {
  const all = [...run.requests.values()];
  const rows = [...all.filter(runs), ...all.filter((one) => !runs(one) && one.phase !== "ended"),
                ...all.filter((one) => one.phase === "ended")];
  if (!rows.length) return html`<p class="none">No requests.</p>`;
  return html`<div class="scroll"><table class="requests">
    <thead><tr><th>request</th><th>state</th><th>prompt</th><th>answer</th><th>guesses</th><th>pages</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.id} class=${one.phase} aria-selected=${focus === one.id}
      onMouseEnter=${() => setFocus(one.id)} onMouseLeave=${() => setFocus(null)}>
      <th scope="row">${one.id}</th>
      <td><i class="dot"></i>${one.phase === "ended" ? `ended: ${one.reason}` : NAMES[one.phase] ?? one.phase}</td>
      <td><meter min="0" max=${Math.max(1, one.prompt)} value=${Math.min(one.computed, one.prompt)}
        title="computed tokens of the prompt"></meter> ${one.prompt}</td>
      <td class="number">${one.output}</td>
      <td class="number">${one.guesses ? `${one.right} of ${one.guesses}` : "–"}</td>
      <td class="number">${one.pages.length || "–"}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

function runs(one) {
  return one.phase === "prefill" || one.phase === "decode";
}

/** What the numbers say, as sentences. */
export function inWords(run, gauges) {
  const all = [...run.requests.values()];
  const running = all.filter(runs).length;
  const waiting = all.filter((one) => one.phase === "waiting" || one.phase === "preempted").length;
  const { totals } = run;
  const said = [`${count(running, "request")} running, ${waiting} waiting.`];
  const first = median(run.firsts.map((one) => one.seconds));
  const gap = median(run.gaps.map((one) => one.seconds));
  if (first !== null) said.push(`In the last two minutes half of the answers began within ${time(first)}.`);
  if (gap !== null) said.push(`From token to token it took ${time(gap)}.`);
  const prompt = gauges ? gauges.prompt_tokens : totals.prompt;
  const cached = gauges ? gauges.cached_tokens : totals.cached;
  if (prompt) said.push(`${percent(cached, prompt)} of the prompts' tokens were found in the prefix cache.`);
  const guesses = gauges ? gauges.guesses : totals.guesses;
  const right = gauges ? gauges.accepted_guesses : totals.right;
  if (guesses) said.push(`${percent(right, guesses)} of ${guesses} guesses were right.`);
  const preempted = gauges ? gauges.preemptions : totals.preempted;
  if (preempted) said.push(`${count(preempted, "time")} a request gave up its pages for an older one.`);
  return said;
}

export function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

export function time(seconds) {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

function percent(part, whole) {
  return `${Math.round((100 * part) / whole)} %`;
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
