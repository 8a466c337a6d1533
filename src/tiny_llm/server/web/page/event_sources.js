// Sources of an EngineState: the server's live events, or a recording.

import { EngineState } from "./engine_state.js";
import { HttpError, ask, events } from "./api.js";

const RETRY_MS = 2000;

/** Subscribes to a model's engine events until `stop` is called. */
export class Live {
  /**
   * @param model name of the model; null or undefined for the first.
   * @param changed callback for a new event or status.
   */
  constructor(model, changed) {
    this._path = model ? `engine/events?model=${encodeURIComponent(model)}` : "engine/events";
    this.run = new EngineState();
    this.status = "connecting";
    this.gauges = null;
    this._changed = changed;
    this._abort = new AbortController();
    this._skew = null; // this machine's clock minus the server's
    this._follow();
  }

  /** Current time on the server's clock. */
  now() {
    return Date.now() / 1000 - (this._skew ?? 0);
  }

  stop() {
    this._abort.abort();
  }

  async _follow() {
    while (!this._abort.signal.aborted) {
      try {
        const response = await ask(this._path, { signal: this._abort.signal });
        this.run = new EngineState();
        for await (const { name, data } of events(response)) this._take(name, JSON.parse(data));
        this.status = "unreachable";
      } catch (error) {
        this.status = error instanceof HttpError && error.status === 401 ? "key" : "unreachable";
      }
      this._changed();
      if (this.status === "key") return; // the page prompts for the key, then reconnects
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  _take(name, data) {
    if (name === "state") {
      this.status = data.phase;
      if (data.phase === "unloaded") this.run = new EngineState();
      this.gauges = data;
      this.run.config = data.config;
    } else {
      const skew = Date.now() / 1000 - data.time;
      this._skew = this._skew === null ? skew : Math.min(this._skew, skew);
      this.run.apply(data);
    }
    this._changed();
  }
}

/** Parses a recording. A truncated file is read up to its last complete event. */
export function parseRecording(text) {
  let recording;
  try {
    recording = JSON.parse(text);
  } catch {
    const end = text.lastIndexOf("}");
    try {
      recording = JSON.parse(text.slice(0, end + 1) + "]}");
    } catch {
      throw new Error("This is not a recording: invalid JSON.");
    }
  }
  if (recording?.schema !== "tiny-llm-run" || !Array.isArray(recording.events)) {
    throw new Error("This is not a tiny-llm recording; create one with `serve --record FILE`.");
  }
  if (recording.version !== 1) {
    throw new Error(`Unsupported recording version ${recording.version}; expected 1.`);
  }
  return recording;
}

export class Player {
  constructor(recording, name, changed) {
    this.name = name;
    this.speed = 1;
    this.playing = false;
    this.status = "recording";
    this.gauges = null;
    this.duration = recording.events.reduce((last, one) => Math.max(last, one.time), 0);
    this._recording = recording;
    this._changed = changed;
    this.seek(0);
    this.play();
  }

  now() {
    return this._at;
  }

  /** Seeks to a time; seeking backwards replays all events from the start. */
  seek(time) {
    if (this.run === undefined || time < this._at) {
      this.run = new EngineState();
      this.run.config = this._recording.engine;
      this._next = 0;
    }
    this._at = Math.min(Math.max(time, 0), this.duration);
    const { events } = this._recording;
    while (this._next < events.length && events[this._next].time <= this._at) {
      this.run.apply(events[this._next++]);
    }
    this._changed();
  }

  play() {
    if (this._at >= this.duration) this.seek(0);
    this.playing = true;
    this._last = performance.now();
    this._timer = setInterval(() => this._tick(), 50);
    this._changed();
  }

  pause() {
    this.playing = false;
    clearInterval(this._timer);
    this._changed();
  }

  stop() {
    this.pause();
  }

  _tick() {
    const now = performance.now();
    const passed = ((now - this._last) / 1000) * this.speed;
    this._last = now;
    this.seek(this._at + passed);
    if (this._at >= this.duration) this.pause();
  }
}
