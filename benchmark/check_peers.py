"""Whether OpenVINO and ONNX Runtime, in 4 bits, compute the model that we compute.

    python -m benchmark.check_peers --openvino-python PYTHON --onnx-python PYTHON

A comparison of speed is worth nothing if one side computes something else. A small random model is
written whose matrices are 4-bit integers times a power of two, so their exporters lose nothing.
Each system answers prompts greedily, through prefill and decoding. We compute the logits of the
same tokens in float32: each token must be our most likely one, or a tie with it.

What a tie is depends on the arithmetic. `--exact` workers compute in float32 as we do, but add in
another order. The logits may then differ by some of float32's roundings: a thousandth of their
spread (standard deviation) is allowed. The settings that are measured round the inputs of a product
to 8 bits. With one scale for a row, a number is off by up to 1/254 of the row's largest, which is
about 1 % of the row's spread. Nine products follow one another, four in each of two layers and the
head, and independent errors of 1 % add up to √9 · 1 % = 3 % of the spread of the logits. Four times
that, an eighth, is allowed.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import mlx.core as mx
import numpy as np

from tiny_llm import Qwen3ModelWeek2, load_weights

from .agreement import Agreement, agreement
from .make_checkpoint import qwen3_config, write_checkpoint
from .systems.client import WorkerError, WorkerProcess, export_once

WORKERS = {"openvino": "openvino_worker", "onnxruntime": "onnxruntime_worker"}
GROUP_SIZE = 128
# By whether a worker is exact: how far behind a tie may be, in standard deviations of the logits.
TIES = {True: 2.0**-10, False: 2.0**-3}
PROMPT_LENGTHS = (1, 7, 33, 100)
NEW_TOKENS = 48
VOCAB_SIZE = 8192


def exact_matrix(shape: tuple[int, ...]) -> mx.array:
    """A random matrix O×I that symmetric 4-bit integers in groups of 128 hold exactly.

    Its numbers are q · s. s is a power of two, and q is from −8 to 7. Each group has a −8, from
    which a quantizer finds s again. The variance is 1/I up to a factor of two.
    """
    O, I = shape
    groups = (O, I // GROUP_SIZE, GROUP_SIZE)
    q = mx.clip(mx.round(2.5 * mx.random.normal(groups)), -7, 7)
    place = mx.random.randint(0, GROUP_SIZE, (*groups[:2], 1))
    q = mx.where(mx.arange(GROUP_SIZE) == place, -8, q)
    return (q * 2.0 ** round(float(np.log2(I**-0.5 / 2.6)))).reshape(O, I)


def write_exact_checkpoint(folder: Path) -> None:
    """A plain Hugging Face folder of two layers whose matrices are `exact_matrix`."""
    config = qwen3_config(256, 2, 512, 4, 2, True, head_dim=64, vocab_size=VOCAB_SIZE)
    write_checkpoint(folder, config, matrix=exact_matrix)


class Reference:
    """Our logits in float32.

    Args:
        folder: from `write_exact_checkpoint`.
    """

    def __init__(self, folder: Path):
        mlx_model, _ = load_weights(str(folder))
        mlx_model.set_dtype(mx.float32)
        self._model = Qwen3ModelWeek2(mlx_model)

    def agreement(self, prompt: list[int], reply: dict[str, list[int]], tie: float) -> Agreement:
        """How a system's answer compares.

        Args:
            prompt: the tokens that it was given.
            reply: `tokens`, its answer, and `never`, tokens that it never chooses.
            tie: see `TIES`.
        """
        tokens = reply["tokens"]
        assert len(tokens) == NEW_TOKENS, "an answer has as many tokens as were asked for"
        cache = self._model.create_kv_cache()
        logits = np.array(self._model(mx.array([prompt + tokens]), 0, cache)[0])
        logits = logits[len(prompt) - 1 : -1]  # those that chose the answer's tokens
        allowed = tie * logits.std(-1)
        logits[:, reply["never"]] = -np.inf
        return agreement(logits, tokens, allowed)


def prompts() -> list[list[int]]:
    """Random token ids."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB_SIZE, length).tolist() for length in PROMPT_LENGTHS]


def check(system: str, python: str, exact: bool, work: Path, plain: Path) -> Agreement:
    """Exports the model, has a system answer, and compares.

    Args:
        system: a key of `WORKERS`.
        python: an interpreter that has it.
        exact: whether activations stay float32.
        work: a folder for the export.
        plain: from `write_exact_checkpoint`.

    Raises:
        WorkerError: the system did not answer.
    """
    folder = work / f"{system}{'-exact' if exact else ''}"
    export_once(python, WORKERS[system], plain, folder, exact)
    flags = ["--exact"] if exact else []
    worker = WorkerProcess(python, WORKERS[system], [str(folder), *flags])
    try:
        reference, total = Reference(plain), Agreement()
        for prompt in prompts():
            reply = worker.ask({"kind": "answer", "ids": prompt, "tokens": NEW_TOKENS})
            if "failed" in reply:
                raise WorkerError(f"{system} failed: {reply['failed']}")
            total += reference.agreement(prompt, reply, TIES[exact])
    finally:
        worker.close()
    return total


def main() -> int:
    """Prints how many predictions agree, for each system and setting; ends in one JSON line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--openvino-python", help="interpreter that has openvino-genai")
    parser.add_argument("--onnx-python", help="interpreter that has onnxruntime-genai")
    args = parser.parse_args()
    pythons = {"openvino": args.openvino_python, "onnxruntime": args.onnx_python}
    if not any(pythons.values()):
        parser.error("give --openvino-python, --onnx-python, or both")
    result: dict[str, Agreement] = {}
    with tempfile.TemporaryDirectory() as work:
        plain = Path(work) / "plain"
        write_exact_checkpoint(plain)
        for system, python in pythons.items():
            for exact in TIES if python else ():
                name = f"{system}, {'float32' if exact else '8-bit'} activations"
                try:
                    result[name] = check(system, python, exact, Path(work), plain)
                except WorkerError as error:
                    print(f"check_peers: {error}.", file=sys.stderr)
                    return 2
                print(f"{name}: {result[name]}")
    print(json.dumps({name: asdict(one) for name, one in result.items()}))
    return 0 if all(one.is_whole for one in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
