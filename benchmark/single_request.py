"""Prefill and decoding speed of Week 2's model for one request.

    python -m benchmark.single_request --model FOLDER [--long] [--flash | --no-flash]

Decoding contexts are random keys and values, so long ones need no prefill. With --long, the time of
a long prompt is extrapolated from evenly spaced chunks, since a chunk's operations grow linearly
with its position.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmark.model_costs import ModelCosts
from tiny_llm.generate.loops import PREFILL_STEP

from .command import benchmark_parser
from .metrics import Metric, throughput
from .model_driver import Week2, run_benchmark
from .roofline import Limits
from .timing import Times, measure, step_seconds

PREFILL_TOKENS = (128, 512, 4096)
CONTEXTS = (128, 1024, 4096, 16384)
LONG = (4096, 16384, 32768)  # prompt and context lengths of --long
SAMPLED_CHUNKS = 4  # timed chunks per long prompt
DECODE_SECONDS = 3.0
SLOW_PREFILL_S = 20.0  # slower prompts are run only once


def prefill_times(run: Callable[[], object], repeats: int) -> Times:
    """Seconds per prompt, up to the selection of the first new token."""
    first = measure(run, repeats=1, warm_up=0)
    if first.median > SLOW_PREFILL_S:
        return first
    return measure(run, repeats, warm_up=0)


def sampled_offsets(tokens: int) -> list[int]:
    """Offsets of the timed chunks of a long prompt.

    Their mean equals the mean of all offsets. The mean times are equal, too, because a chunk's time
    is linear in its offset. `tokens` is `PREFILL_STEP` times a multiple of `SAMPLED_CHUNKS`.
    """
    stride = tokens // PREFILL_STEP // SAMPLED_CHUNKS
    chunks = [n * stride + (stride - 1 + n % 2) // 2 for n in range(SAMPLED_CHUNKS)]
    return [chunk * PREFILL_STEP for chunk in chunks]


def sampled_prefill_times(model: Week2, tokens: int, repeats: int) -> Times:
    """Seconds per prompt, extrapolated from the sampled chunks."""
    offsets = sampled_offsets(tokens)
    caches = model.sequences(1, tokens, max_new_tokens=0).caches

    def run() -> None:
        for offset in offsets:
            model.prompt_chunk(PREFILL_STEP, offset, caches)

    times = prefill_times(run, repeats)
    scale = tokens / (len(offsets) * PREFILL_STEP)
    return Times(times.median * scale, times.minimum * scale)


def decode_times(model: Week2, context: int, steps: int) -> Times:
    """Seconds per token after a context of `context` tokens."""
    sequences = model.sequences(1, context, max_new_tokens=steps + 2)
    return Times.of(
        step_seconds(lambda: model.step(sequences), steps, limit_s=DECODE_SECONDS, warm_up=2)
    )


def measure_row(
    metric: Metric, costs: ModelCosts, limits: Limits, times_of: Callable[[], Times]
) -> Any:
    """Measures and prints a table row; returns it for the JSON."""
    times, machine = limits.around(times_of)
    figures, share = throughput(metric, times, costs, machine, limits)
    row = {"metric": metric.kind, "tokens": metric.tokens, **figures}
    print(
        f"| {metric.label} | {row['tokens_per_s']:,.1f} | {row['best_tokens_per_s']:,.1f} | "
        f"{share} |",
        flush=True,
    )
    return row


def run(
    model: Week2, costs: ModelCosts, limits: Limits, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures all lengths that fit into the model's context."""
    max_seq_len = model.model.max_seq_len
    prompts, contexts = (LONG, LONG) if args.long else (PREFILL_TOKENS, CONTEXTS)
    model.prefill(16)  # warm-up
    rows = []
    print("| | tokens/s, median | tokens/s, best | share of roofline |\n|---|---:|---:|---:|")
    for tokens in (n for n in prompts if n <= min(max_seq_len, args.max_prefill)):
        run_prompt: Callable[[], Times]
        if args.long:
            label = f"prefill {tokens:,}, {SAMPLED_CHUNKS} of {tokens // PREFILL_STEP} chunks"
            run_prompt = partial(sampled_prefill_times, model, tokens, args.repeats)
        else:
            label = f"prefill {tokens:,}"
            run_prompt = partial(prefill_times, partial(model.prefill, tokens), args.repeats)
        rows.append(measure_row(Metric("", label, "prefill", tokens), costs, limits, run_prompt))
    for context in (
        n for n in contexts if n + args.steps + 2 <= min(max_seq_len, args.max_context)
    ):
        metric = Metric("", f"decode at {context:,}", "decode", context)
        decode = partial(decode_times, model, context, args.steps)
        rows.append(measure_row(metric, costs, limits, decode))
    return {"rows": rows}


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--long", action="store_true", help="prompts and contexts of up to 32,768 tokens")
    add("--repeats", type=int, default=3, help="repetitions of each prefill")
    add("--steps", type=int, default=32, help="decoding steps per context")
    add("--max-prefill", type=int, default=LONG[-1], help="maximum prompt length, in tokens")
    add("--max-context", type=int, default=LONG[-1] + 256, help="maximum context length, in tokens")
    return run_benchmark("single_request", parser, run)


if __name__ == "__main__":
    sys.exit(main())
