// The web UI: a chat, and the engine's state, live or from a recording.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Chat } from "./chat.js";
import { Pages } from "./kv_pages.js";
import { Plots } from "./plots.js";
import { Requests, summary } from "./requests.js";
import { ask, setKey } from "./api.js";
import { Live, Player, parseRecording } from "./event_sources.js";
import { Tree } from "./prefix_tree.js";

const FRAME_MS = 100; // refresh interval of the engine view
const MODELS_MS = 2000; // refresh interval of the list of models, if there are several
const STATUS = {
  connecting: "connecting…", unloaded: "loads on first use", loading: "loading model…", ready: "ready", draining: "shutting down…",
  failed: "engine failed", unreachable: "server unreachable", key: "API key required", recording: "recording",
};

function App() {
  const [, setTick] = useState(0);
  const refresh = () => setTick((tick) => tick + 1);
  const live = useRef(null);
  const [player, setPlayer] = useState(null);
  const [models, setModels] = useState([]);
  const [chosen, setChosen] = useState(null); // name of the selected model
  const [view, setView] = useState("chat"); // visible panel on narrow screens
  const [needsKey, setNeedsKey] = useState(false);
  const [fileError, setFileError] = useState(null);
  const [focus, setFocus] = useState(null);

  function connect(model) {
    live.current?.stop();
    live.current = new Live(model, () => { if (live.current?.status === "key") setNeedsKey(true); });
  }

  useEffect(() => {
    connect();
    const timer = setInterval(refresh, FRAME_MS);
    return () => { clearInterval(timer); live.current.stop(); };
  }, []);

  const status = live.current?.status ?? "connecting";
  const list = () => ask("v1/models").then((response) => response.json()).then(({ data }) => setModels(data)).catch(() => {});
  // Aliases of a model have the same root.
  const choices = models.filter(({ root }, index) => models.findIndex((other) => other.root === root) === index);
  const model = chosen ?? models[0]?.id ?? "", hasChoice = choices.length > 1;
  useEffect(() => {
    list();
    const timer = hasChoice ? setInterval(list, MODELS_MS) : null;
    return () => clearInterval(timer);
  }, [status, hasChoice]);
  const accepts = ["ready", "unloaded", ...(hasChoice ? ["loading"] : [])].includes(status);

  async function open(file) {
    if (!file) return;
    try {
      const recording = parseRecording(await file.text());
      player?.stop();
      setPlayer(new Player(recording, file.name, refresh));
      setFileError(null);
      setView("engine");
    } catch (error) {
      setFileError(error.message);
    }
  }

  const source = player ?? live.current;
  return html`
    <a class="skip" href="#prompt">Skip to message input</a>
    <header onDragOver=${(event) => event.preventDefault()}
      onDrop=${(event) => { event.preventDefault(); open(event.dataTransfer.files[0]); }}>
      <h1>tiny-llm</h1>
      ${hasChoice
        ? html`<select class="model" aria-label="Model" value=${model}
            onChange=${(event) => { setChosen(event.target.value); connect(event.target.value); }}>
            ${choices.map(({ id, loaded }) => html`<option value=${id}>${id} (${loaded ? "loaded" : "not loaded"})</option>`)}
          </select>`
        : html`<span class="model">${model}</span>`}
      <span class="status ${status}" role="status"><i class="dot"></i>${STATUS[status] ?? status}</span>
      <nav aria-label="View">
        ${["chat", "engine"].map((name) => html`<button type="button" aria-pressed=${view === name}
          onClick=${() => setView(name)}>${name === "chat" ? "Chat" : "Engine"}</button>`)}
      </nav>
      <label class="button file" title="JSON file written by serve --record">Open recording<input type="file" accept=".json,application/json"
        onChange=${(event) => { open(event.target.files[0]); event.target.value = ""; }} /></label>
    </header>
    ${fileError && html`<p class="error bar" role="alert">${fileError}
      <button type="button" class="link" onClick=${() => setFileError(null)}>dismiss</button></p>`}
    <main class=${`shows-${view}`}>
      <${Chat} model=${model} ready=${accepts} askForKey=${() => setNeedsKey(true)} />
      <section class="engine panel" aria-label="Engine">
        ${player && html`<${Playback} player=${player} close=${() => { player.stop(); setPlayer(null); }} />`}
        ${source && html`<${Engine} source=${source} model=${model} focus=${focus} setFocus=${setFocus} refresh=${refresh}
          hasServer=${status === "ready"} />`}
      </section>
    </main>
    ${needsKey && html`<${KeyForm} done=${(key) => { setKey(key); setNeedsKey(false); connect(chosen); }} />`}`;
}

function Engine({ source, model, focus, setFocus, refresh, hasServer }) {
  const run = source.run, now = source.now();
  run.prune(now);
  return html`
    <div class="numbers">
      <span><b>${Math.round(run.speed(now))}</b> tokens/s</span>
      <span><b>${(source.gauges?.steps ?? run.step).toLocaleString("en")}</b> steps</span>
    </div>
    <p class="stats">${summary(run, source.gauges).join(" ")}</p>
    <h2>Requests</h2><${Requests} run=${run} focus=${focus} setFocus=${setFocus} />
    <h2>KV cache pages</h2><${Pages} run=${run} focus=${focus} />
    <h2>Prefix cache</h2><${Tree} run=${run} model=${model} focus=${focus} setFocus=${setFocus} refresh=${refresh} hasServer=${hasServer} />
    <h2>Throughput and latency</h2><${Plots} run=${run} now=${now} />`;
}

function Playback({ player, close }) {
  return html`<div class="playback" role="group" aria-label="Playback">
    <span class="name">${player.name}</span>
    <div class="row">
      <button type="button" onClick=${() => (player.playing ? player.pause() : player.play())}>${player.playing ? "Pause" : "Play"}</button>
      <input type="range" min="0" max=${player.duration} step="0.01" value=${player.now()} aria-label="Position"
        onInput=${(event) => player.seek(+event.target.value)} />
      <span class="clock">${player.now().toFixed(1)} / ${player.duration.toFixed(1)} s</span>
      <label class="hidden" for="speed">Playback speed</label>
      <select id="speed" value=${player.speed} onChange=${(event) => { player.speed = +event.target.value; }}>
        ${[0.1, 0.25, 0.5, 1, 2, 5, 20].map((speed) => html`<option value=${speed}>${speed} ×</option>`)}
      </select>
      <button type="button" onClick=${close}>Back to live</button>
    </div>
  </div>`;
}

function KeyForm({ done }) {
  const dialog = useRef();
  const [key, setValue] = useState("");
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="key-title">
    <form method="dialog" onSubmit=${(event) => { event.preventDefault(); done(key); }}>
      <h2 id="key-title">API key required</h2>
      <p>The key is kept in memory only, until this page is closed.</p>
      <label>API key<input type="password" autocomplete="off" value=${key} onInput=${(event) => setValue(event.target.value)} /></label>
      <button class="main">Connect</button>
    </form>
  </dialog>`;
}

render(html`<${App} />`, document.getElementById("app"));
