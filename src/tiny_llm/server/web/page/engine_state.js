// The engine's state, reconstructed from live or recorded events.
//
// See engine/scheduling/events.py for events and engine/scheduling/snapshot.py for snapshots.

const KEPT_SECONDS = 120; // retention of samples
const SHOWN_AFTER_END = 3; // seconds a finished request stays in the table

export class EngineState {
  constructor() {
    this.config = null; // see `LLM.describe`
    this.time = 0; // time of the last event, in seconds
    this.step = 0;
    this.requests = new Map(); // by id, in arrival order
    this.pages = null; // page counts by state
    this.owners = new Map(); // page -> ids of its requests
    this.tree = { pages: [], parents: [], labels: {} };
    this.states = null; // counts of recurrent state slots; null for models without them
    this.checkpoints = new Set(); // pages of the prefix cache with a state checkpoint
    this.numPages = 0;
    this.pageSize = 0;
    this.tokenSamples = []; // {time, tokens}: generated tokens
    this.ttftSamples = []; // {time, seconds}: time to first token
    this.itlSamples = []; // {time, seconds}: inter-token latency
    this.totals = { ended: {}, tokens: 0, prompt: 0, cached: 0, draftTokens: 0, acceptedTokens: 0, preempted: 0 };
  }

  /** Applies an event; ignores unknown ones, which a newer server may send. */
  apply(event) {
    this.time = Math.max(this.time, event.time);
    HANDLERS[event.event]?.(this, event);
  }

  prune(now) {
    for (const [id, one] of this.requests) {
      if (one.endedAt !== null && now - one.endedAt > SHOWN_AFTER_END) this.requests.delete(id);
    }
    for (const list of [this.tokenSamples, this.ttftSamples, this.itlSamples]) {
      let old = 0;
      while (old < list.length && now - list[old].time > KEPT_SECONDS) old++;
      list.splice(0, old);
    }
  }

  /** Generated tokens per second over the last `seconds`. */
  speed(now, seconds = 2) {
    const recent = this.tokenSamples.filter((one) => one.time > now - seconds && one.time <= now);
    return recent.reduce((sum, one) => sum + one.tokens, 0) / seconds;
  }

  request(id) {
    if (!this.requests.has(id)) {
      this.requests.set(id, {
        id, phase: "waiting", prompt: 0, computed: 0, output: 0, limit: null, cached: 0,
        draftTokens: 0, acceptedTokens: 0, preemptions: 0, pages: [], shared: 0,
        addedAt: null, lastAt: null, endedAt: null, reason: null,
      });
    }
    return this.requests.get(id);
  }
}

const HANDLERS = {
  request_added(run, event) {
    const one = run.request(event.request_id);
    Object.assign(one, { prompt: event.prompt_tokens, limit: event.max_tokens, addedAt: event.time });
  },

  request_admitted(run, event) {
    const one = run.request(event.request_id);
    Object.assign(one, { phase: "prefill", computed: event.cached_tokens });
    if (one.preemptions === 0) {
      one.cached = event.cached_tokens;
      run.totals.prompt += one.prompt;
      run.totals.cached += event.cached_tokens;
    }
  },

  request_preempted(run, event) {
    const one = run.request(event.request_id);
    Object.assign(one, { phase: "preempted", computed: 0, pages: [], shared: 0 });
    one.preemptions += 1;
    run.totals.preempted += 1;
  },

  request_ended(run, event) {
    const one = run.request(event.request_id);
    Object.assign(one, { phase: "ended", reason: event.reason, endedAt: event.time, pages: [] });
    run.totals.ended[event.reason] = (run.totals.ended[event.reason] || 0) + 1;
  },

  step_scheduled(run, event) {
    run.step = event.step;
    run.pages = event.pages;
    for (const chunk of event.chunks) {
      const one = run.request(chunk.request_id);
      one.computed = chunk.end;
      one.phase = chunk.end < one.prompt + one.output ? "prefill" : "decode";
      one.draftTokens += chunk.num_drafts;
      run.totals.draftTokens += chunk.num_drafts;
    }
  },

  state_slot_counts(run, event) {
    run.states = event;
  },

  tokens_added(run, event) {
    const one = run.request(event.request_id);
    const count = event.token_ids.length;
    one.output += count;
    one.acceptedTokens += event.accepted;
    run.totals.acceptedTokens += event.accepted;
    run.totals.tokens += count;
    run.tokenSamples.push({ time: event.time, tokens: count });
    if (one.lastAt !== null) {
      run.itlSamples.push({ time: event.time, seconds: (event.time - one.lastAt) / count });
    } else if (one.addedAt !== null) {
      run.ttftSamples.push({ time: event.time, seconds: event.time - one.addedAt });
    }
    one.lastAt = event.time;
  },

  snapshot(run, event) {
    Object.assign(run, { numPages: event.num_pages, pageSize: event.page_size, tree: event.tree });
    run.states = event.states ?? null;
    run.checkpoints = new Set(event.states?.checkpoint_pages);
    run.owners = new Map();
    for (const given of event.requests) {
      const one = run.request(given.request_id);
      Object.assign(one, {
        prompt: given.prompt_tokens, computed: given.computed_tokens, output: given.output_tokens,
        limit: given.max_tokens, cached: given.cached_tokens, preemptions: given.preemptions,
        pages: given.pages, shared: given.shared_pages,
      });
      if (given.state === "running") {
        one.phase = one.output > 0 && one.computed + 1 >= one.prompt + one.output ? "decode" : "prefill";
      } else {
        one.phase = given.state;
      }
      for (const page of given.pages) {
        if (!run.owners.has(page)) run.owners.set(page, []);
        run.owners.get(page).push(one.id);
      }
    }
    const held = run.owners.size;
    const shared = [...run.owners.values()].filter((ids) => ids.length > 1).length;
    const cached = event.tree.pages.filter((page) => !run.owners.has(page)).length;
    run.pages = { free: event.num_pages - held - cached, cached, used: held, shared };
    // Remove requests that ended before this viewer connected.
    const known = new Set(event.requests.map((given) => given.request_id));
    for (const one of run.requests.values()) {
      if (!known.has(one.id) && one.endedAt === null) run.requests.delete(one.id);
    }
  },
};
