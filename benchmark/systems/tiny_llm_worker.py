"""tiny-llm as a worker: `python -m benchmark.systems.tiny_llm_worker FOLDER`.

Measures Week 2's model, or the engine: with `--engine`, for model families that Week 2 does not
support, and for GGUF files.
"""

import argparse
import time
from pathlib import Path
from typing import Any, Literal

from benchmark.model_costs import ModelCosts
from tiny_llm.models.output_heads import Task

from .worker import DECODE_STEPS, decode_seconds, serve, token_ids

MAX_SEQS = 16  # largest batch


class TinyLlm:
    """Week 2's model; see `benchmark.model_driver.Week2` for `flash`."""

    def __init__(self, folder: Path, flash: bool | None):
        # Imported here so that imports count as load time, as in the other workers.
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
        sequences = self._week2.sequences(batch, context, max_new_tokens=DECODE_STEPS + 1)
        return {"seconds": decode_seconds(lambda: self._week2.step(sequences))}


class TinyLlmEngine:
    """The engine, one request per sequence; `embed` requires the task "embed"."""

    def __init__(
        self,
        folder: Path,
        kv_cache_bytes: int | None = None,
        task: Task = "generate",
        activation_bits: Literal[16, 8] = 16,
    ):
        from tiny_llm import LLM, SamplingParams, kernels

        self._llm = LLM(
            str(folder),
            task=task,
            kv_cache_bytes=kv_cache_bytes,
            max_num_seqs=MAX_SEQS,
            enable_prefix_caching=False,
            activation_bits=activation_bits,
        )
        self._params = SamplingParams
        costs = ModelCosts.from_folder(folder)
        self._vocab_size = costs.args.vocab_size
        self.weight_bits = costs.weight_bits
        extension = kernels.extension()
        rounded = ", 8-bit activations" if activation_bits == 8 else ""
        self.about = (
            f"engine, {extension.instruction_set()}, {extension.num_threads()} threads{rounded}"
        )
        self._prompts = 0
        if task == "generate":
            self._run(1, 16, 1)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        start = time.perf_counter()
        self._run(1, tokens, 1)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        requests = self._run(batch, context, DECODE_STEPS + 8)
        seconds = decode_seconds(self._llm.step)
        for request in requests:
            self._llm.abort(request)
        return {"seconds": seconds}

    def embed(self, batch: int, tokens: int) -> dict[str, Any]:
        """Embeds `batch` texts; returns {"seconds": …, "vector": of the first text}."""
        prompts = [token_ids(tokens, self._vocab_size) for _ in range(batch)]
        start = time.perf_counter()
        vectors = self._llm.embed(prompts)
        return {"seconds": time.perf_counter() - start, "vector": vectors[0]}

    def _run(self, batch: int, tokens: int, max_tokens: int) -> list[str]:
        """Runs new requests until each has its first token; returns their ids."""
        params = self._params(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        ids = token_ids(tokens, self._vocab_size)
        requests = [self._llm.add_request(ids, params) for _ in range(batch)]
        pending = set(requests)
        while pending:
            pending -= {output.request_id for output in self._llm.step()}
        return requests


def load(args: argparse.Namespace) -> TinyLlm | TinyLlmEngine:
    """Loads a checkpoint into Week 2's model, or into the engine if Week 2 cannot run it."""
    is_engine = args.engine or args.folder.is_file()
    if is_engine or ModelCosts.from_folder(args.folder).args.model_type != "qwen3":
        return TinyLlmEngine(args.folder, activation_bits=args.activation_bits)
    return TinyLlm(args.folder, args.flash)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flash", action=argparse.BooleanOptionalAction)
    parser.add_argument("--engine", action="store_true", help="measure the engine")
    parser.add_argument(
        "--activation-bits", type=int, choices=(16, 8), default=16, help="with --engine"
    )
    parser.add_argument("--embed", action="store_true", help="measure embeddings")
    arguments = parser.parse_args()
    if arguments.embed:
        serve(lambda: TinyLlmEngine(arguments.folder, task="embed"))
    else:
        serve(lambda: load(arguments))
