// The page: a chat, and beside it the engine, live or from a recording.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { Chat } from "./chat.js";
import { Pages } from "./kv_pages.js";
import { Plots } from "./plots.js";
import { Requests, summary } from "./requests.js";
import { ask, setKey } from "./api.js";
import { Live, Player, parseRecording } from "./event_sources.js";
import { Tree } from "./prefix_tree.js";

const FRAME_MS = 100; // between two pictures of the engine
const STATUS = {
  connecting: "connecting …", loading: "loading the model …", ready: "ready", draining: "shutting down …",
  broken: "engine failed", gone: "server unreachable", key: "API key required", recording: "recording",
};

function App() {
  const [, setTick] = useState(0);
  const again = () => setTick((tick) => tick + 1);
  const live = useRef(null);
  const [player, setPlayer] = useState(null);
  const [model, setModel] = useState("");
  const [shown, setShown] = useState("chat"); // in a narrow window
  const [wantsKey, setWantsKey] = useState(false);
  const [mistake, setMistake] = useState(null);
  const [focus, setFocus] = useState(null);

  function connect() {
    live.current?.stop();
    live.current = new Live(() => { if (live.current?.status === "key") setWantsKey(true); });
  }

  useEffect(() => {
    connect();
    const timer = setInterval(again, FRAME_MS);
    return () => { clearInterval(timer); live.current.stop(); };
  }, []);

  const status = live.current?.status ?? "connecting";
  useEffect(() => {
    ask("v1/models").then((response) => response.json()).then((found) => setModel(found.data[0].id)).catch(() => {});
  }, [status]);

  async function open(file) {
    if (!file) return;
    try {
      const recording = parseRecording(await file.text());
      player?.stop();
      setPlayer(new Player(recording, file.name, again));
      setMistake(null);
      setShown("engine");
    } catch (error) {
      setMistake(error.message);
    }
  }

  const source = player ?? live.current;
  return html`
    <a class="skip" href="#prompt">To the message</a>
    <header onDragOver=${(event) => event.preventDefault()}
      onDrop=${(event) => { event.preventDefault(); open(event.dataTransfer.files[0]); }}>
      <h1>tiny-llm</h1>
      <span class="model">${model}</span>
      <span class="status ${status}" role="status"><i class="dot"></i>${STATUS[status] ?? status}</span>
      <nav aria-label="View">
        ${["chat", "engine"].map((name) => html`<button type="button" aria-pressed=${shown === name}
          onClick=${() => setShown(name)}>${name === "chat" ? "Chat" : "Engine"}</button>`)}
      </nav>
      <label class="button file" title="a recording written by --record">Open recording<input type="file" accept=".json,application/json"
        onChange=${(event) => { open(event.target.files[0]); event.target.value = ""; }} /></label>
    </header>
    ${mistake && html`<p class="error bar" role="alert">${mistake}
      <button type="button" class="link" onClick=${() => setMistake(null)}>close</button></p>`}
    <main class=${`shows-${shown}`}>
      <${Chat} model=${model} ready=${status === "ready"} askForKey=${() => setWantsKey(true)} />
      <section class="engine panel" aria-label="Engine">
        ${player && html`<${Playback} player=${player} close=${() => { player.stop(); setPlayer(null); }} />`}
        ${source && html`<${Engine} source=${source} focus=${focus} setFocus=${setFocus} again=${again}
          hasServer=${!player || status === "ready"} />`}
      </section>
    </main>
    ${wantsKey && html`<${KeyForm} done=${(key) => { setKey(key); setWantsKey(false); connect(); }} />`}`;
}

function Engine({ source, focus, setFocus, again, hasServer }) {
  const run = source.run, now = source.now();
  run.prune(now);
  return html`
    <div class="numbers">
      <span><b>${Math.round(run.speed(now))}</b> tokens/s</span>
      <span><b>${(source.gauges?.steps ?? run.step).toLocaleString("en")}</b> steps</span>
    </div>
    <p class="words">${summary(run, source.gauges).join(" ")}</p>
    <h2>Requests</h2><${Requests} run=${run} focus=${focus} setFocus=${setFocus} />
    <h2>Pages</h2><${Pages} run=${run} focus=${focus} />
    <h2>Prefix tree</h2><${Tree} run=${run} focus=${focus} setFocus=${setFocus} again=${again} hasServer=${hasServer} />
    <h2>Speed</h2><${Plots} run=${run} now=${now} />`;
}

function Playback({ player, close }) {
  return html`<div class="playback" role="group" aria-label="Playback">
    <span class="name">${player.name}</span>
    <div class="row">
      <button type="button" onClick=${() => (player.playing ? player.pause() : player.play())}>${player.playing ? "Pause" : "Play"}</button>
      <input type="range" min="0" max=${player.duration} step="0.01" value=${player.now()} aria-label="Position"
        onInput=${(event) => player.seek(+event.target.value)} />
      <span class="clock">${player.now().toFixed(1)} of ${player.duration.toFixed(1)} s</span>
      <label class="hidden" for="speed">Speed</label>
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
      <h2 id="key-title">This server requires an API key</h2>
      <p>Kept in memory until the page is closed.</p>
      <label>Key<input type="password" autocomplete="off" value=${key} onInput=${(event) => setValue(event.target.value)} /></label>
      <button class="main">Connect</button>
    </form>
  </dialog>`;
}

render(html`<${App} />`, document.getElementById("app"));
