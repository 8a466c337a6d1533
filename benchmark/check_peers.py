"""Checks that OpenVINO and ONNX Runtime predict the same tokens as tiny-llm.

    python -m benchmark.check_peers --openvino-python PYTHON --onnx-python PYTHON

A speed comparison is meaningless if the systems compute different models. The checkpoint is a small
random model whose matrices are 4-bit integers times a power of two, which the exporters preserve
exactly. Each system generates greedy outputs; each token must be the most likely one, or a tie, in
tiny-llm's float32 logits.

The maximum gap of a tie is a fraction of the logits' standard deviation. For `--exact` workers,
whose float32 sums differ only in order, it is a thousandth; for the benchmarked settings, which
round matmul inputs to 8 bits, an eighth. Rounding with one scale per row has errors of up to 1/254
of the row's maximum, about 1 % of its standard deviation. Independent errors of nine successive
matmuls (four per layer, and the head) add up to √9 · 1 % = 3 %, a quarter of the threshold.
"""

import argparse
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
import numpy as np

from tiny_llm import Qwen3ModelWeek2, UserError, load_weights

from .agreement import Agreement, agreement
from .command import benchmark_parser, print_json, run_command
from .make_checkpoint import qwen3_config, write_checkpoint
from .systems.client import WorkerProcess, export_once

WORKERS = {"openvino": "openvino_worker", "onnxruntime": "onnxruntime_worker"}
GROUP_SIZE = 128
# Tie threshold in standard deviations of the logits, by whether activations are float32 (--exact).
TIE_TOLERANCES = {True: 2.0**-10, False: 2.0**-3}
PROMPT_LENGTHS = (1, 7, 33, 100)
NEW_TOKENS = 48
VOCAB_SIZE = 8192


def exact_matrix(shape: tuple[int, ...]) -> mx.array:
    """Draws an O×I matrix (outputs × inputs) exactly representable in 4-bit groups of 128.

    Elements are q · s, with s a power of two and q in −8 … 7. Each group contains q = −8, so a
    symmetric quantizer recovers s. The variance is 1/I up to a factor of two.
    """
    O, I = shape
    groups = (O, I // GROUP_SIZE, GROUP_SIZE)
    q = mx.clip(mx.round(2.5 * mx.random.normal(groups)), -7, 7)
    position = mx.random.randint(0, GROUP_SIZE, (*groups[:2], 1))
    q = mx.where(mx.arange(GROUP_SIZE) == position, -8, q)
    return (q * 2.0 ** round(float(np.log2(I**-0.5 / 2.6)))).reshape(O, I)


def write_exact_checkpoint(folder: Path) -> None:
    """Writes an unquantized Hugging Face folder: two layers with `exact_matrix` weights."""
    config = qwen3_config(256, 2, 512, 4, 2, True, head_dim=64, vocab_size=VOCAB_SIZE)
    write_checkpoint(folder, config, matrix=exact_matrix)


class Reference:
    """tiny-llm's logits in float32, the reference for the other systems."""

    def __init__(self, folder: Path):
        mlx_model, _ = load_weights(str(folder))
        mlx_model.set_dtype(mx.float32)
        self._model = Qwen3ModelWeek2(mlx_model)

    def agreement(self, prompt: list[int], reply: dict[str, list[int]], tie: float) -> Agreement:
        """Compares a system's output with tiny-llm's logits.

        Args:
            prompt: the system's input tokens.
            reply: the output as `tokens`, and the tokens that cannot be generated as `excluded`.
            tie: see `TIE_TOLERANCES`.
        """
        tokens = reply["tokens"]
        assert len(tokens) == NEW_TOKENS, f"expected {NEW_TOKENS} output tokens, got {len(tokens)}"
        cache = self._model.create_kv_cache()
        logits = np.array(self._model(mx.array([prompt + tokens]), 0, cache)[0])
        logits = logits[len(prompt) - 1 : -1]  # rows that predict the output tokens
        allowed = tie * logits.std(-1)
        logits[:, reply["excluded"]] = -np.inf
        return agreement(logits, tokens, allowed)


def prompts() -> list[list[int]]:
    """Random prompts of the lengths in `PROMPT_LENGTHS`, as token ids."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


def check(system: str, python: str, exact: bool, work: Path, checkpoint: Path) -> Agreement:
    """Exports a checkpoint for a system; compares the outputs with tiny-llm's.

    Args:
        work: folder for the exported model.
        checkpoint: output of `write_exact_checkpoint`.

    Raises:
        WorkerError: the system failed.
    """
    folder = work / f"{system}{'-exact' if exact else ''}"
    export_once(python, WORKERS[system], checkpoint, folder, exact)
    flags = ["--exact"] if exact else []
    with closing(WorkerProcess(python, WORKERS[system], [str(folder), *flags])) as worker:
        reference, total = Reference(checkpoint), Agreement()
        for prompt in prompts():
            result = worker.run({"kind": "generate", "ids": prompt, "tokens": NEW_TOKENS})
            total += reference.agreement(prompt, result, TIE_TOLERANCES[exact])
    return total


def main() -> int:
    """Prints the agreement per system and setting; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--openvino-python", help="Python interpreter with openvino-genai")
    parser.add_argument("--onnx-python", help="Python interpreter with onnxruntime-genai")
    return run_command("check_peers", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Compares each system, with float32 and with 8-bit activations."""
    pythons = {"openvino": args.openvino_python, "onnxruntime": args.onnx_python}
    if not any(pythons.values()):
        raise UserError("at least one of --openvino-python and --onnx-python is required.")
    result: dict[str, Agreement] = {}
    with tempfile.TemporaryDirectory() as work:
        checkpoint = Path(work) / "checkpoint"
        write_exact_checkpoint(checkpoint)
        for system, python in pythons.items():
            for exact in TIE_TOLERANCES if python else ():
                name = f"{system}, {'float32' if exact else '8-bit'} activations"
                result[name] = check(system, python, exact, Path(work), checkpoint)
                print(f"{name}: {result[name]}")
    counts = {name: asdict(agreement) for name, agreement in result.items()}
    return print_json(counts, int(not all(agreement.all_agree for agreement in result.values())))


if __name__ == "__main__":
    sys.exit(main())
