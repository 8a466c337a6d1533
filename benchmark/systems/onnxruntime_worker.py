"""ONNX Runtime GenAI as a worker: `python -m benchmark.systems.onnxruntime_worker FOLDER`.

`--export` makes the folder from a plain one first, with the library's own model builder. Accuracy
level 4, its default for CPUs, multiplies activations of 8 bits. Keys and values are float32.
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
    """A folder of the model builder's."""

    def __init__(self, folder: Path):
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
        self.weight_bits = 4 + SCALE_BITS / BLOCK_SIZE
        self.about = (
            f"onnxruntime-genai {onnxruntime_genai.__version__}, int4 in blocks of {BLOCK_SIZE}, "
            f"activations in 8 bits, {threads} threads"
        )
        self._begin(1, 8)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        start = time.perf_counter()
        self._begin(1, tokens)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`; the past is a prompt that was prefilled."""
        return {"seconds": decode_seconds(self._begin(batch, context).generate_next_token)}

    def _begin(self, batch: int, tokens: int) -> Any:
        """A generator that has computed its prompts and their next tokens."""
        length = tokens + DECODE_STEPS + 8
        parameters = self._api.GeneratorParams(self._model)
        # The end tokens of the folder mean nothing here: no sequence ends early.
        parameters.set_search_options(
            max_length=length, min_length=length, batch_size=batch, do_sample=False
        )
        generator = self._api.Generator(self._model, parameters)
        ids = self._np.array(token_ids(tokens, self._vocab_size), self._np.int32)
        generator.append_tokens(self._np.tile(ids, (batch, 1)))
        generator.generate_next_token()
        return generator


def export(source: Path, folder: Path) -> None:
    """Writes ONNX Runtime's folder for a plain Hugging Face one."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source)]
    command += ["-o", str(folder), "-p", "int4", "-e", "cpu", "-c", str(folder / "cache")]
    command += ["--extra_options", f"block_size={BLOCK_SIZE}", "accuracy_level=4"]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    serve_or_export(__doc__ or "", OnnxRuntime, export)
