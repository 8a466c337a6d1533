"""Throughput and latency on random token ids; the last line is JSON.

All sequences arrive at once and run through continuous batching. EOS tokens are ignored, so each
output has exactly the length drawn for it.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import kernels
from ..errors import UserError
from ..sampler import make_sampler
from .backends.checkpoint import Checkpoint, open_checkpoint
from .batching.runs import BatchRun, open_batch_run
from .batching.workload import (
    LengthRange,
    TimestampTokenizer,
    Workload,
    latencies,
    synthetic_workload,
)
from .parsing.arguments import (
    add_batch_arguments,
    add_model_arguments,
    check_batch_arguments,
    in_range,
)
from .parsing.command import CommandParser, console, run_command

WARMUP_TOKENS = 8  # enough to run every decoding kernel


def main(argv: Sequence[str] | None = None, prog: str = "bench") -> int:
    """Runs the command. Exit status: 0, or 2 for a user error."""
    return run_command(prog, lambda: _bench(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """Parser of the command's flags."""
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.bench")
    add_model_arguments(parser)
    add_batch_arguments(parser)
    for flag, low, default, text in (
        ("--num-seqs", 1, 16, "number of sequences"),
        ("--min-input-len", 1, 32, "minimum prompt length in tokens"),
        ("--max-input-len", 1, 256, "maximum prompt length in tokens"),
        ("--min-output-len", 1, 32, "minimum output length in tokens"),
        ("--max-output-len", 1, 128, "maximum output length in tokens"),
        ("--warmup", 0, 1, "sequences to run before the measurement"),
        ("--seed", 0, 0, "seed of the lengths and token ids"),
    ):
        parser.add_argument(flag, type=in_range(low), default=default, metavar="N", help=text)
    return parser


def measure(args: argparse.Namespace, checkpoint: Checkpoint, workload: Workload) -> dict[str, Any]:
    """Runs a workload once.

    Args:
        args: flags, checked by `check_batch_arguments`.
        checkpoint: the model; its tokenizer is unused.
        workload: prompts and output lengths.

    Returns:
        Counts, seconds, tokens per second, latencies in milliseconds, gigabytes (10⁹ bytes).
    """
    clock = TimestampTokenizer()
    run = _open(args, checkpoint, workload, clock)
    mx.reset_peak_memory()
    started = time.perf_counter()
    _serve(run, len(workload.prompts))
    seconds = time.perf_counter() - started
    prompt, output = workload.prompt_tokens, workload.output_tokens
    assert sum(map(len, clock.sequences)) == output, "each output has its drawn length"
    return {
        "num_seqs": len(workload.prompts),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "seconds": round(seconds, 4),
        "prompt_tokens_per_s": round(prompt / seconds, 2),
        "output_tokens_per_s": round(output / seconds, 2),
        "total_tokens_per_s": round((prompt + output) / seconds, 2),
        **latencies(clock.sequences, started),
        "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 4),
    }


def _open(
    args: argparse.Namespace, checkpoint: Checkpoint, workload: Workload, clock: TimestampTokenizer
) -> BatchRun:
    return open_batch_run(
        args,
        Checkpoint(checkpoint.name, checkpoint.mlx_model, clock),
        workload.prompts,
        workload.output_lens,
        make_sampler(temp=0),
        ignore_eos=True,
    )


def _serve(run: BatchRun, num_seqs: int) -> None:
    """Runs a batch to the end. Redraws the progress bar only after a finished sequence."""
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task("sequences", total=num_seqs)
        finished = 0
        while not run.is_done:
            run.step()
            if len(run.outputs) > finished:
                finished = len(run.outputs)
                progress.update(task, completed=finished, refresh=True)


def _bench(args: argparse.Namespace) -> int:
    check_batch_arguments(args)
    inputs = LengthRange("input", args.min_input_len, args.max_input_len)
    outputs = LengthRange("output", args.min_output_len, args.max_output_len)
    checkpoint = open_checkpoint(args)
    config = checkpoint.mlx_model.args
    if inputs.high + outputs.high > config.max_position_embeddings:
        raise UserError(
            f"--max-input-len {inputs.high} plus --max-output-len {outputs.high} exceeds the "
            f"context of '{checkpoint.name}', {config.max_position_embeddings} tokens."
        )
    if args.warmup:
        # Another seed: the measured prompts must not hit the prefix cache.
        short = LengthRange("output", 1, min(outputs.high, WARMUP_TOKENS))
        warmup = synthetic_workload(args.warmup, inputs, short, config.vocab_size, args.seed + 1)
        _serve(_open(args, checkpoint, warmup, TimestampTokenizer()), args.warmup)
    workload = synthetic_workload(args.num_seqs, inputs, outputs, config.vocab_size, args.seed)
    result = {
        "model": checkpoint.name,
        "solution": args.solution,
        "loader": args.loader,
        "device": "cpu" if kernels.computes_on_cpu() else "gpu",
        "flash_attn": args.enable_flash_attn,
        "tensor_parallel_size": args.tensor_parallel_size,
        "batch_size": args.batch_size,
        "prefill_step": args.prefill_step,
        "warmup": args.warmup,
        "seed": args.seed,
        **measure(args, checkpoint, workload),
        "tiny_llm": version("tiny-llm"),
        "mlx": version("mlx"),
    }
    _print_table(result)
    print(json.dumps(result))
    return 0


def _print_table(result: dict[str, Any]) -> None:
    table = Table("", "tokens", "tokens/s", title=f"{result['num_seqs']} sequences")
    for kind in ("prompt", "output", "total"):
        tokens, speed = result[f"{kind}_tokens"], result[f"{kind}_tokens_per_s"]
        table.add_row(kind, str(tokens), f"{speed:.1f}")
    latency = Table("ms", "median", "p95", title="latency")
    for label, name in (("time to first token", "ttft_ms"), ("inter-token latency", "itl_ms")):
        pair = (result[f"{name}_median"], result[f"{name}_p95"])
        latency.add_row(label, *("–" if ms is None else f"{ms:.1f}" for ms in pair))
    screen = Console(highlight=False)
    screen.print(table)
    screen.print(latency)
    screen.print(f"{result['seconds']:.2f} s, peak memory {result['peak_memory_gb']:.3f} GB")


if __name__ == "__main__":
    sys.exit(main())
