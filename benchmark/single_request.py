"""One request: prefill and decoding speed of Week 2's model, under this machine's roofline.

    python -m benchmark.single_request --model FOLDER [--flash | --no-flash]

Decoding is measured with a past of random keys and values, so that a long one costs no prefill.
"""

import argparse
import json
import sys
from typing import Any

import mlx.core as mx
from rich.console import Console

from benchmark.model_costs import ModelCosts
from tiny_llm import UserError
from tiny_llm.models import find_model

from .metrics import Metric, throughput
from .model_driver import Week2
from .roofline import Machine, measure_or_warn
from .timing import Times, measure, step_seconds

PREFILL_TOKENS = (128, 512, 4096)
CONTEXTS = (128, 1024, 4096, 16384)
DECODE_SECONDS = 3.0
SLOW_PREFILL_S = 20.0  # such a prompt is run once


def prefill_times(model: Week2, tokens: int, repeats: int) -> Times:
    """Seconds of a prompt, up to the choice of the first new token."""
    first = measure(lambda: model.prefill(tokens), repeats=1, warm_up=0)
    if first.median > SLOW_PREFILL_S:
        return first
    return measure(lambda: model.prefill(tokens), repeats, warm_up=0)


def decode_times(model: Week2, context: int, steps: int) -> Times:
    """Seconds of one token after a past of `context`."""
    sequences = model.sequences(1, context, room=steps + 2)
    return Times.of(
        step_seconds(lambda: model.step(sequences), steps, limit_s=DECODE_SECONDS, warm_up=2)
    )


def result(metric: Metric, times: Times, costs: ModelCosts, machine: Machine | None) -> Any:
    """A row of the table, for the JSON; it is printed too."""
    figures, share = throughput(metric, times, costs, machine)
    row = {"metric": metric.kind, "tokens": metric.tokens, **figures}
    print(
        f"| {metric.label} | {row['tokens_per_s']:,.1f} | {row['best_tokens_per_s']:,.1f} | "
        f"{share} |",
        flush=True,
    )
    return row


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measures everything the model's context has room for."""
    if args.device is not None:
        mx.set_default_device(mx.cpu if args.device == "cpu" else mx.gpu)
    costs = ModelCosts.from_folder(find_model(args.model, Console(stderr=True)))
    model = Week2(args.model, args.flash)
    machine = measure_or_warn()
    room = model.model.max_seq_len
    model.prefill(16)  # the first run of a kernel does not count
    rows = []
    print("| | tokens/s, median | tokens/s, best | of the roofline |\n|---|---:|---:|---:|")
    for tokens in (n for n in PREFILL_TOKENS if n <= min(room, args.max_prefill)):
        metric = Metric("", f"prefill {tokens:,}", "prefill", tokens)
        times = prefill_times(model, tokens, args.repeats)
        rows.append(result(metric, times, costs, machine))
    for context in (n for n in CONTEXTS if n + args.steps + 2 <= min(room, args.max_context)):
        metric = Metric("", f"decode at {context:,}", "decode", context)
        times = decode_times(model, context, args.steps)
        rows.append(result(metric, times, costs, machine))
    limits = None if machine is None else str(machine)
    return {"model": args.model, "attention": model.attention, "machine": limits, "rows": rows}


def main() -> int:
    """Prints a table and ends in one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="demo", help="a folder or a name; demo if not given")
    add("--flash", action=argparse.BooleanOptionalAction, help="the default")
    add("--device", choices=("cpu", "gpu"), help="MLX's own choice if not given")
    add("--repeats", type=int, default=3, help="of a prefill")
    add("--steps", type=int, default=32, help="tokens to decode")
    add("--max-prefill", type=int, default=PREFILL_TOKENS[-1], help="leaves out longer prompts")
    add("--max-context", type=int, default=CONTEXTS[-1] + 256, help="leaves out longer contexts")
    try:
        print(json.dumps(run(parser.parse_args())))
    except UserError as error:
        print(f"single_request: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
