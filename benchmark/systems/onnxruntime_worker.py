"""ONNX Runtime GenAI as a worker: `python -m benchmark.systems.onnxruntime_worker FOLDER`.

`--export` creates the folder from an unquantized one with the library's model builder. Accuracy
level 4, the builder's default for CPUs, rounds activations to 8 bits. `--exact`, which must also be
given at export, selects level 1: float32 activations. Keys and values are always float32.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .worker import DECODE_STEPS, decode_seconds, num_threads, serve_or_export, token_ids

BLOCK_SIZE = 128
SCALE_BITS = 32


class OnnxRuntime:
    """A model exported by the library's model builder."""

    def __init__(self, folder: Path, exact: bool = False):
        import numpy as np
        import onnxruntime_genai

        self._np, self._api = np, onnxruntime_genai
        threads = num_threads()
        config = onnxruntime_genai.Config(str(folder))
        options = {"session_options": {"intra_op_num_threads": threads}}
        config.overlay(json.dumps({"model": {"decoder": options}}))
        self._model: Any = onnxruntime_genai.Model(config)
        settings = json.loads((folder / "genai_config.json").read_text())
        self._vocab_size: int = settings["model"]["vocab_size"]
        self._eos_token_id = settings["model"]["eos_token_id"]
        self.weight_bits = 4 + SCALE_BITS / BLOCK_SIZE
        self.about = (
            f"onnxruntime-genai {onnxruntime_genai.__version__}, int4 in blocks of {BLOCK_SIZE}, "
            f"{'float32' if exact else '8-bit'} activations, {threads} threads"
        )
        self._prefill(1, 8)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        start = time.perf_counter()
        self._prefill(1, tokens)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`; the context is a prefilled prompt."""
        return {"seconds": decode_seconds(self._prefill(batch, context).generate_next_token)}

    def generate(self, ids: list[int], tokens: int) -> dict[str, Any]:
        """Greedy output: {"tokens": …, "excluded": tokens that cannot occur}."""
        generator = self._generator([ids], tokens)
        for _ in range(tokens - 1):
            generator.generate_next_token()
        eos = self._eos_token_id
        chosen = [int(token) for token in generator.get_sequence(0)[len(ids) :]]
        return {"tokens": chosen, "excluded": eos if isinstance(eos, list) else [eos]}

    def _prefill(self, batch: int, tokens: int) -> Any:
        """Generator with `batch` prompts of `tokens` tokens prefilled."""
        return self._generator([token_ids(tokens, self._vocab_size)] * batch, DECODE_STEPS + 8)

    def _generator(self, prompts: list[list[int]], new_tokens: int) -> Any:
        """Creates a generator, prefills prompts of equal length, generates a token for each."""
        length = len(prompts[0]) + new_tokens
        parameters = self._api.GeneratorParams(self._model)
        # A minimum length prevents EOS tokens from ending a sequence early.
        parameters.set_search_options(
            max_length=length, min_length=length, batch_size=len(prompts), do_sample=False
        )
        generator = self._api.Generator(self._model, parameters)
        generator.append_tokens(self._np.array(prompts, self._np.int32))
        generator.generate_next_token()
        return generator


def export(source: Path, folder: Path, exact: bool) -> None:
    """Exports an unquantized Hugging Face folder to ONNX Runtime's format."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
    command += ["-o", str(folder), "-p", "int4", "-e", "cpu", "-c", str(folder / "cache")]
    level = 1 if exact else 4
    command += ["--extra_options", f"block_size={BLOCK_SIZE}", f"accuracy_level={level}"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    serve_or_export(__doc__ or "", OnnxRuntime, export)
