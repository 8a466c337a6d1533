// The request table and the engine's summary.

import { html } from "./vendor/preact-htm.js";

const NAMES = {
  waiting: "waiting", preempted: "preempted", prefill: "prefill",
  decode: "decoding", ended: "finished",
};

export function Requests({ run, focus, setFocus }) {
  const all = [...run.requests.values()];
  const rows = [...all.filter(runs), ...all.filter((one) => !runs(one) && one.phase !== "ended"),
                ...all.filter((one) => one.phase === "ended")];
  if (!rows.length) return html`<p class="none">No requests.</p>`;
  return html`<div class="scroll"><table class="requests">
    <thead><tr><th>request</th><th>state</th><th>prompt</th><th>output</th><th title="accepted / proposed draft tokens">draft tokens</th><th>pages</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.id} class=${one.phase} aria-selected=${focus === one.id}
      onMouseEnter=${() => setFocus(one.id)} onMouseLeave=${() => setFocus(null)}>
      <th scope="row">${one.id}</th>
      <td><i class="dot"></i>${one.phase === "ended" ? `finished: ${one.reason}` : NAMES[one.phase] ?? one.phase}</td>
      <td><meter min="0" max=${Math.max(1, one.prompt)} value=${Math.min(one.computed, one.prompt)}
        title="computed prompt tokens"></meter> ${one.prompt}</td>
      <td class="number">${one.output}</td>
      <td class="number">${one.draftTokens ? `${one.acceptedTokens} / ${one.draftTokens}` : "–"}</td>
      <td class="number">${one.pages.length || "–"}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

function runs(one) {
  return one.phase === "prefill" || one.phase === "decode";
}

/** Summarizes the engine's metrics as sentences. */
export function summary(run, gauges) {
  const all = [...run.requests.values()];
  const running = all.filter(runs).length;
  const waiting = all.filter((one) => one.phase === "waiting" || one.phase === "preempted").length;
  const { totals } = run;
  const sentences = [`${count(running, "request")} running, ${waiting} waiting.`];
  const first = median(run.ttftSamples.map((one) => one.seconds));
  const gap = median(run.itlSamples.map((one) => one.seconds));
  if (first !== null) sentences.push(`Median time to first token over the last two minutes: ${time(first)}.`);
  if (gap !== null) sentences.push(`Median inter-token latency: ${time(gap)}.`);
  const prompt = gauges ? gauges.prompt_tokens : totals.prompt;
  const cached = gauges ? gauges.cached_tokens : totals.cached;
  if (prompt) sentences.push(`Prefix cache hit rate: ${percent(cached, prompt)}.`);
  const drafts = gauges ? gauges.draft_tokens : totals.draftTokens;
  const accepted = gauges ? gauges.accepted_draft_tokens : totals.acceptedTokens;
  if (drafts) sentences.push(`${percent(accepted, drafts)} of ${drafts} draft tokens accepted.`);
  const preempted = gauges ? gauges.preemptions : totals.preempted;
  if (preempted) sentences.push(`${count(preempted, "preemption")}.`);
  return sentences;
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
  return `${Math.round((100 * part) / whole)}%`;
}

function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}
