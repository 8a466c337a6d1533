"""Prefill and decoding speed of Week 2's model for one request.

    python -m benchmark.single_request --model FOLDER [--flash | --no-flash]

Decoding contexts are random keys and values, so long ones need no prefill.
"""

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
from rich.console import Console

from benchmark.model_costs import ModelCosts
from tiny_llm import UserError
from tiny_llm.models import find_model

from .metrics import Metric, throughput
from .model_driver import Week2
from .roofline import Limits, measured_limits
from .timing import Times, measure, step_seconds

PREFILL_TOKENS = (128, 512, 4096)
CONTEXTS = (128, 1024, 4096, 16384)
DECODE_SECONDS = 3.0
SLOW_PREFILL_S = 20.0  # slower prompts run once


def prefill_times(model: Week2, tokens: int, repeats: int) -> Times:
    """Seconds per prompt, up to the selection of the first new token."""
    first = measure(lambda: model.prefill(tokens), repeats=1, warm_up=0)
    if first.median > SLOW_PREFILL_S:
        return first
    return measure(lambda: model.prefill(tokens), repeats, warm_up=0)


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


def run(args: argparse.Namespace, limits: Limits) -> dict[str, Any]:
    """Measures all lengths that fit into the model's context."""
    if args.device is not None:
        mx.set_default_device(mx.cpu if args.device == "cpu" else mx.gpu)
    costs = ModelCosts.from_folder(find_model(args.model, Console(stderr=True)))
    model = Week2(args.model, args.flash)
    max_seq_len = model.model.max_seq_len
    model.prefill(16)  # warm-up
    rows = []
    print("| | tokens/s, median | tokens/s, best | share of roofline |\n|---|---:|---:|---:|")
    for tokens in (n for n in PREFILL_TOKENS if n <= min(max_seq_len, args.max_prefill)):
        metric = Metric("", f"prefill {tokens:,}", "prefill", tokens)
        run_prompt = partial(prefill_times, model, tokens, args.repeats)
        rows.append(measure_row(metric, costs, limits, run_prompt))
    for context in (
        n for n in CONTEXTS if n + args.steps + 2 <= min(max_seq_len, args.max_context)
    ):
        metric = Metric("", f"decode at {context:,}", "decode", context)
        decode = partial(decode_times, model, context, args.steps)
        rows.append(measure_row(metric, costs, limits, decode))
    machine = None if limits.machine is None else str(limits.machine)
    return {"model": args.model, "attention": model.attention, "machine": machine, "rows": rows}


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="demo", help="model name or folder (default: demo)")
    add(
        "--flash",
        action=argparse.BooleanOptionalAction,
        help="use the flash attention kernel (default)",
    )
    add("--device", choices=("cpu", "gpu"), help="default: MLX's choice")
    add("--repeats", type=int, default=3, help="repeats per prefill")
    add("--steps", type=int, default=32, help="tokens to decode")
    add("--max-prefill", type=int, default=PREFILL_TOKENS[-1], help="longest prompt")
    add("--max-context", type=int, default=CONTEXTS[-1] + 256, help="longest context")
    args = parser.parse_args()
    with measured_limits() as limits:
        try:
            print(json.dumps(run(args, limits)))
        except UserError as error:
            print(f"single_request: {error}", file=sys.stderr)
            return 2
        return limits.exit_status()


if __name__ == "__main__":
    sys.exit(main())
