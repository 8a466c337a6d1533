"""Experiments of `serving.py`, one function each."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_llm import LLM, Qwen3ModelWeek2, SamplingParams
from tiny_llm.batch import BatchGeneration
from tiny_llm.cli.open_loop import (
    LengthRange,
    TimestampTokenizer,
    Workload,
    latencies,
    synthetic_workload,
)
from tiny_llm.demo import BATCH_PROMPTS
from tiny_llm.engine.scheduling.request import SchedulerOutput
from tiny_llm.models.families.registry import config_of

from .model_costs import ModelCosts
from .systems.worker import token_ids


@dataclass(frozen=True)
class ServingOptions:
    """Engine configuration and workload."""

    num_requests: int
    low: int  # minimum length of prompts and outputs
    high: int  # maximum length of prompts and outputs
    batch_size: int  # concurrent requests of Week 2 and llama.cpp; sizes the engine's KV cache, too
    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_step: int  # tokens per prefill chunk of Week 2
    page_size: int

    def workload(self, vocab_size: int) -> Workload:
        """Builds the workload, identical for every system."""
        inputs = LengthRange("input", self.low, self.high)
        outputs = LengthRange("output", self.low, self.high)
        return synthetic_workload(self.num_requests, inputs, outputs, vocab_size, seed=1)

    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens, rounded up to entire pages per request."""
        per_request = -(-2 * self.high // self.page_size) * self.page_size
        return self.batch_size * per_request


def build_engine(mlx_model: Any, options: ServingOptions, **changes: Any) -> LLM:
    """Builds an engine for prompts of token ids, with the KV cache size of `options`."""
    settings: dict[str, Any] = {
        "kv_cache_bytes": _kv_bytes(mlx_model, options.kv_tokens()),
        "block_size": options.page_size,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "max_num_seqs": options.max_num_seqs,
    }
    llm = LLM((mlx_model, TimestampTokenizer()), **{**settings, **changes})
    llm.reserve()  # allocates memory before the timer starts
    return llm


def serve_with_engine(mlx_model: Any, workload: Workload, options: ServingOptions) -> dict:
    """Throughput of the engine, and inter-token gaps during prefills: None without such steps."""
    llm = build_engine(mlx_model, options)
    steps: list[SchedulerOutput] = []
    _record_steps(llm, steps)
    started = time.perf_counter()
    for prompt, limit in zip(workload.prompts, workload.output_lens, strict=True):
        llm.add_request(prompt, SamplingParams(temperature=0, max_tokens=limit, ignore_eos=True))
    gaps: list[float] = []
    latest: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    while llm.has_unfinished_requests:
        outputs = llm.step()
        now = time.perf_counter()
        prefilled = any(chunk.end - chunk.start > 1 for chunk in steps[-1].chunks)
        for output in outputs:
            if prefilled and output.request_id in latest:
                gaps.append(now - latest[output.request_id])
            latest[output.request_id] = now
            times.setdefault(output.request_id, []).append(now)
    seconds = time.perf_counter() - started
    p50, p95 = (1e3 * np.percentile(gaps, [50, 95])).tolist() if gaps else (None, None)
    return {
        "seconds": seconds,
        "output_tokens_per_s": workload.output_tokens / seconds,
        "steps": len(steps),
        "preemptions": llm.scheduler.num_preemptions,
        "gap_ms_p50_while_prefilling": p50,
        "gap_ms_p95_while_prefilling": p95,
        "overhead_share": 1 - llm.runner.seconds / llm.step_seconds,
        **latencies(list(times.values()), started),
    }


def serve_with_week_2(mlx_model: Any, workload: Workload, options: ServingOptions) -> dict:
    """Throughput of Week 2's continuous batching on the same requests."""
    clock = TimestampTokenizer()
    started = time.perf_counter()
    batch = BatchGeneration(
        Qwen3ModelWeek2(mlx_model, enable_flash_attn=True),
        clock,
        workload.prompts,
        max_seq_len=2 * options.high + 1,
        batch_size=options.batch_size,
        prefill_step=options.prefill_step,
        max_tokens=workload.output_lens,
        ignore_eos=True,
    )
    while not batch.is_done:
        batch.step()
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "output_tokens_per_s": workload.output_tokens / seconds,
        **latencies(clock.sequences, started),
    }


def scheduling_overhead(mlx_model: Any, options: ServingOptions, num_seqs: int, steps: int) -> dict:
    """Time of a decoding step that is spent outside the model and sampling."""
    context = 64
    llm = build_engine(
        mlx_model,
        options,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs * 2 + 256,
        kv_cache_bytes=_kv_bytes(mlx_model, num_seqs * (context + steps + 4 * options.page_size)),
    )
    params = SamplingParams(temperature=0, max_tokens=steps + 40, ignore_eos=True)
    vocab_size = llm.vocab_size
    for number in range(num_seqs):
        llm.add_request([number % vocab_size, *token_ids(context, vocab_size)], params)
    while llm.scheduler.waiting or any(seq.num_uncomputed > 1 for seq in llm.scheduler.running):
        llm.step()
    total, model = llm.step_seconds, llm.runner.seconds
    for _ in range(steps):
        llm.step()
    total, model = llm.step_seconds - total, llm.runner.seconds - model
    return {
        "num_seqs": num_seqs,
        "step_ms": total / steps * 1e3,
        "overhead_ms": (total - model) / steps * 1e3,
        "share": 1 - model / total,
    }


def prefix_hit(mlx_model: Any, options: ServingOptions, tokens: int, repeats: int) -> dict:
    """Time to first token with and without `tokens` cached prompt tokens."""
    suffix_tokens = 16
    budget = _kv_bytes(
        mlx_model, (tokens + 2 * suffix_tokens + 4 * options.page_size) * (repeats + 1)
    )
    llm = build_engine(mlx_model, options, kv_cache_bytes=budget, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0, max_tokens=1)
    cold: list[float] = []
    warm: list[float] = []
    rng = np.random.default_rng(2)
    for _ in range(repeats):
        prefix = rng.integers(0, llm.vocab_size, tokens).tolist()
        for seconds in (cold, warm):
            prompt = prefix + rng.integers(0, llm.vocab_size, suffix_tokens).tolist()
            [output] = llm.generate([prompt], params, use_tqdm=False)
            assert output.num_cached_tokens == (0 if seconds is cold else tokens)
            assert output.metrics.ttft is not None
            seconds.append(output.metrics.ttft)
    return {
        "cached_tokens": tokens,
        "cold_ms": statistics.median(cold) * 1e3,
        "hit_ms": statistics.median(warm) * 1e3,
        "ratio": statistics.median(cold) / statistics.median(warm),
    }


def speculation(max_tokens: int) -> dict:
    """Steps of the demo model on `BATCH_PROMPTS`, with and without its draft model."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    prompts = [[{"role": "user", "content": prompt}] for prompt in BATCH_PROMPTS]
    figures: dict[str, Any] = {}
    token_ids_by_run = []
    for name, draft in (("plain", None), ("draft", "demo-draft")):
        llm = LLM("demo", kv_cache_bytes=2**25, draft_model=draft)
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        figures[f"{name}_seconds"] = time.perf_counter() - started
        figures[f"{name}_target_steps"] = llm.runner.statistics.target_steps
        token_ids_by_run.append([output.token_ids for output in outputs])
    figures["proposed"] = llm.runner.statistics.num_draft_tokens
    figures["accepted"] = llm.runner.statistics.num_accepted_tokens
    figures["step_ratio"] = figures["plain_target_steps"] / figures["draft_target_steps"]
    figures["same_tokens"] = token_ids_by_run[0] == token_ids_by_run[1]
    return figures


def summary(rounds: Sequence[dict]) -> dict:
    """Results of the median round by throughput, and the best throughput."""
    ordered = sorted(rounds, key=lambda run: run["output_tokens_per_s"])
    best = ordered[-1]["output_tokens_per_s"]
    return {**ordered[len(ordered) // 2], "best_output_tokens_per_s": best}


def _record_steps(llm: LLM, steps: list[SchedulerOutput]) -> None:
    """Records the output of every scheduled step."""
    schedule = llm.scheduler.schedule

    def scheduled() -> SchedulerOutput:
        steps.append(schedule())
        return steps[-1]

    llm.scheduler.schedule = scheduled  # type: ignore[method-assign]


def _kv_bytes(mlx_model: Any, tokens: int) -> int:
    costs = ModelCosts(config_of(mlx_model.args), weight_bits=16)
    return tokens * costs.kv_bytes_per_token
