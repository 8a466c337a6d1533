"""Decoding speed by quantization format: tokens/s and share of the bandwidth.

    python -m benchmark.quantization_formats [--shape NAME | --model FOLDER] [--formats 4 mxfp4]

The weights are random, in a real model's shapes; a folder only needs a `config.json`. All formats
are loaded at once, and every round measures each format. The bandwidth is the highest of those
measured before and after each round. The share of bandwidth counts the bytes that a step reads from
memory, which for some formats exceed those in the file; the last column counts the file's.
"""

import argparse
import sys
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from rich.console import Console

from benchmark.model_costs import ModelCosts
from tiny_llm import UserError
from tiny_llm.engine.execution.paged_model import PagedModel, Span
from tiny_llm.models import serving_model
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.checkpoint.safe_io import read_json
from tiny_llm.models.checkpoint.tensor_shapes import MODES
from tiny_llm.models.loading import evaluate

from .command import benchmark_parser, print_json, run_command
from .make_checkpoint import SHAPES, qwen3_config
from .roofline import Limits, Machine, measured_limits
from .systems.worker import peak_bytes, token_ids
from .timing import Times, step_seconds

PAGE_SIZE = 128

FORMATS: dict[str, dict[str, Any] | None] = {
    **{str(bits): {"bits": bits, "group_size": 64} for bits in sorted(MODES["affine"][0])},
    "mxfp4": {"mode": "mxfp4"},
    "mxfp8": {"mode": "mxfp8"},
    "nvfp4": {"mode": "nvfp4"},
    "plain": None,
}


@dataclass
class Decoding:
    """A model in one format, decoding a single sequence."""

    name: str
    config: dict[str, Any]  # parsed `config.json`, with the format's quantization
    context: int
    load_seconds: float = field(init=False)
    seconds: list[float] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        start = time.perf_counter()
        weights = random_checkpoint(self.config)
        evaluate(weights, Console(stderr=True))
        self.model = serving_model(self.name, weights, PAGE_SIZE)
        self.load_seconds = time.perf_counter() - start
        self.costs = ModelCosts.from_model(weights.args, self.model)
        self.file_bits = ModelCosts.from_config(self.config).weight_bits
        # 32 pages for decoding; memory is allocated only for pages that are written.
        num_pages = self.context // PAGE_SIZE + 32
        self._paged = PagedModel(self.model, num_pages)
        self._page_ids = array("i", range(num_pages))
        self._length = 0
        self._step(token_ids(self.context, self.model.vocab_size))
        self._step([1])

    def decode(self, steps: int) -> None:
        """Adds the times of `steps` steps, after a warm-up step, to `seconds`."""
        self.seconds += step_seconds(lambda: self._step([1]), steps, warm_up=1)

    def _step(self, ids: list[int]) -> None:
        span = Span(ids, self._length, self._page_ids)
        logits = self._paged.logits([span], [len(ids) - 1])
        mx.eval(mx.argmax(logits, axis=-1))
        self._length += len(ids)

    def row(self, machine: Machine | None) -> dict[str, Any]:
        """Speed, bandwidth share, bits per weight and load time, for a table row."""
        times = Times.of(self.seconds)
        in_memory = self.costs.decode_bytes(1, self.context)
        in_file = self.costs.decode_bytes(1, self.context, weight_bits=self.file_bits)
        bandwidth = 0.0 if machine is None else machine.read_gb_per_s * 1e9
        return {
            "format": self.name,
            "bits_in_memory": self.costs.weight_bits,
            "bits_in_file": self.file_bits,
            "tokens_per_s": 1 / times.median,
            "best_tokens_per_s": 1 / times.minimum,
            "share": in_memory / times.minimum / bandwidth if bandwidth else None,
            "share_of_file": in_file / times.minimum / bandwidth if bandwidth else None,
            "load_seconds": self.load_seconds,
        }


def run(args: argparse.Namespace) -> int:
    """Measures all formats, interleaved, and prints the table."""
    if args.model is None:
        config = qwen3_config(*SHAPES[args.shape])
    else:
        config = dict(read_json(Path(args.model), "config.json"))
    config.pop("quantization", None)
    decodings = []
    for name in args.formats:
        quantization = {} if FORMATS[name] is None else {"quantization": FORMATS[name]}
        try:
            decodings.append(Decoding(name, {**config, **quantization}, args.context))
        except ValueError as error:
            raise UserError(str(error)) from error

    def decode_all() -> None:
        for decoding in decodings:
            decoding.decode(args.steps)

    with measured_limits() as limits:
        for _ in range(args.rounds):
            limits.around(decode_all)
    machine = limits.machine
    rows = [decoding.row(machine) for decoding in decodings]
    print(f"{machine}\n" if machine is not None else "")
    print(
        "| format | bits per weight in memory | tokens/s, median | best | share of bandwidth |",
        end="",
    )
    print(" share by file size |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['format']} | {row['bits_in_memory']:.2f} | {row['tokens_per_s']:.1f} | "
            f"{row['best_tokens_per_s']:.1f} | {_share(row, 'share', limits)} | "
            f"{_share(row, 'share_of_file', limits)} |"
        )
    shape = args.model or args.shape
    return print_json(
        {"shape": shape, "machine": str(machine), "rows": rows, "peak_bytes": peak_bytes()},
        limits.exit_status(),
    )


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="qwen3-0.6b")
    add("--model", help="folder with a config.json, instead of --shape")
    add("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="default: all")
    add("--context", type=int, default=128, help="context length in tokens")
    add("--rounds", type=int, default=5)
    add("--steps", type=int, default=8, help="steps per format and round")
    return run_command("quantization_formats", parser.parse_args(), run)


def _share(row: dict[str, Any], column: str, limits: Limits) -> str:
    share = row[column]
    return "" if share is None else limits.share(f"format {row['format']}", share, 1)


if __name__ == "__main__":
    sys.exit(main())
