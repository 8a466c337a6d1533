"""Decoding speed by batch size, and continuous batching end to end.

    python -m benchmark.batch --model FOLDER [--flash | --no-flash]

First measures decoding steps at each batch size, with a context of 128 tokens. Then runs a queue of
prompts through `BatchGeneration`, which interleaves chunked prefill with decoding.
"""

import argparse
import sys
import time
from typing import Any

from benchmark.model_costs import ModelCosts
from tiny_llm.batch import BatchGeneration
from tiny_llm.cli.open_loop import TimestampTokenizer

from .command import benchmark_parser
from .metrics import Metric, throughput
from .model_driver import Week2, run_benchmark
from .roofline import Limits
from .systems.worker import token_ids
from .timing import Times, step_seconds

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
CONTEXT = 128
DECODE_SECONDS = 3.0
# Workload of the end-to-end run.
NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 16, 128, 32


def decode_row(
    model: Week2, batch: int, args: argparse.Namespace, costs: ModelCosts, limits: Limits
) -> dict[str, Any]:
    """Measures and prints tokens per second at one batch size."""
    sequences = model.sequences(batch, CONTEXT, max_new_tokens=args.steps + 2)
    seconds, machine = limits.around(
        lambda: step_seconds(
            lambda: model.step(sequences), args.steps, limit_s=DECODE_SECONDS, warm_up=2
        )
    )
    times = Times.of(seconds)
    metric = Metric("", f"batch {batch}", "decode", CONTEXT, batch)
    figures, share = throughput(metric, times, costs, machine, limits)
    row = {"batch": batch, **figures}
    print(
        f"| {batch} | {times.median * 1e3:.1f} | {row['tokens_per_s']:,.1f} | "
        f"{row['best_tokens_per_s']:,.1f} | {share} |",
        flush=True,
    )
    return row


def end_to_end(model: Week2, batch_size: int, prefill_step: int) -> dict[str, Any]:
    """Runs the queue of prompts; returns prompt and output tokens per second."""
    prompts = [token_ids(PROMPT_TOKENS, model.model.vocab_size) for _ in range(NUM_PROMPTS)]
    start = time.perf_counter()
    batch = BatchGeneration(
        model.model,
        TimestampTokenizer(),
        prompts,
        max_seq_len=PROMPT_TOKENS + NEW_TOKENS,
        batch_size=batch_size,
        prefill_step=prefill_step,
    )
    while not batch.is_done:
        batch.step()
    seconds = time.perf_counter() - start
    return {
        "prompts": NUM_PROMPTS,
        "batch_size": batch_size,
        "prompt_tokens_per_s": NUM_PROMPTS * PROMPT_TOKENS / seconds,
        "new_tokens_per_s": NUM_PROMPTS * NEW_TOKENS / seconds,
        "seconds": seconds,
    }


def run(
    model: Week2, costs: ModelCosts, limits: Limits, args: argparse.Namespace
) -> dict[str, Any]:
    """Measures all batch sizes, then the queue of prompts."""
    print("| batch | step, ms | tokens/s, median | tokens/s, best | share of roofline |")
    print("|---:|---:|---:|---:|---:|")
    sizes = [size for size in BATCH_SIZES if size <= args.max_batch]
    rows = [decode_row(model, batch, args, costs, limits) for batch in sizes]
    queue = end_to_end(model, min(8, args.max_batch), args.prefill_step)
    print(
        f"\n{NUM_PROMPTS} prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new tokens each, "
        f"batch size {queue['batch_size']}: {queue['seconds']:.1f} s, "
        f"{queue['new_tokens_per_s']:.1f} new tokens/s"
    )
    return {"decode": rows, "end_to_end": queue}


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=24, help="decoding steps per batch size")
    add("--max-batch", type=int, default=BATCH_SIZES[-1], help="largest batch size")
    add("--prefill-step", type=int, default=128, help="end-to-end run: tokens per prefill chunk")
    return run_benchmark("batch", parser, run)


if __name__ == "__main__":
    sys.exit(main())
