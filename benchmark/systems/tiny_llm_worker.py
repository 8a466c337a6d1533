"""tiny-llm's Week 2 model as a worker: `python -m benchmark.systems.tiny_llm_worker FOLDER`."""

import argparse
import time
from pathlib import Path
from typing import Any

from benchmark.model_costs import ModelCosts

from .worker import DECODE_STEPS, decode_seconds, serve


class TinyLlm:
    """Model of a checkpoint folder; `flash` as in `benchmark.model_driver.Week2`."""

    def __init__(self, folder: Path, flash: bool | None):
        # Imported here to count in the load time, as in the other workers.
        from benchmark.model_driver import Week2
        from tiny_llm import kernels

        self._week2 = Week2(str(folder), flash)
        self._week2.prefill(1)
        extension = kernels.extension()
        self.weight_bits = ModelCosts.from_folder(folder).weight_bits
        self.about = (
            f"{self._week2.attention}, {extension.instruction_set()}, "
            f"{extension.num_threads()} threads, bfloat16 KV"
        )
        self._is_warm = False

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        if not self._is_warm:
            self._week2.prefill(min(tokens, 128))
            self._is_warm = True
        start = time.perf_counter()
        self._week2.prefill(tokens)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        sequences = self._week2.sequences(batch, context, room=DECODE_STEPS + 1)
        return {"seconds": decode_seconds(lambda: self._week2.step(sequences))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction)
    arguments = parser.parse_args()
    serve(lambda: TinyLlm(arguments.folder, arguments.flash))
