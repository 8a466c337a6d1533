"""llama.cpp as a worker: `python -m benchmark.systems.llama_cpp_worker FILE.gguf`.

Uses the low-level API of llama-cpp-python, so that several sequences share a batch. The fastest
settings (flash attention, one KV buffer for all sequences) depend on machine and metric: the first
measurement of a metric tries all combinations, later ones use the fastest. The reply's note lists
how much slower the other settings are.
"""

import argparse
import ctypes
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .worker import DECODE_STEPS, decode_seconds, serve, token_ids

UBATCH = 512  # tokens per micro-batch, llama.cpp's default


@dataclass(frozen=True)
class Setting:
    """A llama.cpp configuration to try."""

    flash: bool
    unified: bool  # one KV buffer for all sequences; irrelevant for one sequence

    def __str__(self) -> str:
        unified = ", unified KV" if self.unified else ""
        return f"flash attention {'on' if self.flash else 'off'}{unified}"


class Context:
    """A llama.cpp context: KV cache for `batch` sequences of at most `length` tokens."""

    def __init__(
        self,
        model: Any,
        threads: int,
        setting: Setting,
        batch: int,
        length: int,
        embeds: bool = False,
    ):
        import llama_cpp

        self._api, self._model = llama_cpp, model
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        seq_len = -(-(length + DECODE_STEPS + 8) // 256) * 256
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = seq_len * batch
        params.n_batch = params.n_ubatch = UBATCH
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(setting.flash)
        params.kv_unified = setting.unified
        params.no_perf = True
        params.embeddings = embeds
        if embeds:
            params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_LAST
        self._context = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise RuntimeError(
                f"llama.cpp cannot create a context for {batch} sequences with {setting}"
            )
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(UBATCH, 0, 1)

    def prefill(self, tokens: int, sequence: int = 0) -> None:
        """Replaces a sequence with `tokens` tokens and predicts the next one."""
        self.run(token_ids(tokens, self._vocab_size), sequence)

    def run(self, ids: Sequence[int], sequence: int = 0, every: bool = False) -> list[int]:
        """Replaces a sequence; predicts the next token (`every`: after each token)."""
        self.truncate(0, sequence)
        predicted: list[int] = []
        for start in range(0, len(ids), UBATCH):
            chunk = ids[start : start + UBATCH]
            entries = [(token, start + i, sequence) for i, token in enumerate(chunk)]
            is_last = start + len(chunk) == len(ids)
            outputs = range(0 if every else len(chunk) - int(is_last), len(chunk))
            predicted += self.decode(entries, outputs)
        return predicted

    def embed(self, batch: int, tokens: int) -> list[float]:
        """Embeds `batch` texts; returns the normalized embedding of the first text."""
        import numpy as np

        ids = token_ids(tokens, self._vocab_size)
        vector: Any = None
        for sequence in range(batch):
            self.truncate(0, sequence)
        texts_at_once = max(1, UBATCH // tokens)
        for first in range(0, batch, texts_at_once):
            sequences = range(first, min(first + texts_at_once, batch))
            entries = [
                (token, i, sequence) for sequence in sequences for i, token in enumerate(ids)
            ]
            self._run(entries, range(len(entries)))
            if vector is None:
                size = self._api.llama_model_n_embd(self._model)
                pointer = self._api.llama_get_embeddings_seq(self._context, first)
                vector = np.array(np.ctypeslib.as_array(pointer, (size,)))
        return (vector / np.linalg.norm(vector)).tolist()

    def loss(self, ids: Sequence[int]) -> float:
        """Negative log-likelihood of all tokens but the first."""
        import numpy as np

        total = 0.0
        self.truncate(0)
        for start in range(0, len(ids), UBATCH):
            chunk = ids[start : start + UBATCH]
            entries = [(token, start + i, 0) for i, token in enumerate(chunk)]
            targets = ids[start + 1 : start + len(chunk) + 1]  # none after the last token
            for row, token in zip(self._logits(entries, range(len(chunk))), targets, strict=False):
                logits = row.astype(np.float64)
                top = logits.max()
                total += top + np.log(np.exp(logits - top).sum()) - logits[token]
        return float(total)

    def step(self, tokens: list[int]) -> list[int]:
        """Appends one token per sequence; returns the next token of each."""
        entries = [
            (token, self.length(sequence), sequence) for sequence, token in enumerate(tokens)
        ]
        return self.decode(entries, range(len(tokens)))

    def length(self, sequence: int = 0) -> int:
        """Number of tokens of a sequence."""
        return self._api.llama_memory_seq_pos_max(self._memory, sequence) + 1

    def truncate(self, length: int, sequence: int = 0) -> bool:
        """Truncates a sequence; False if a recurrent state prevents it."""
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def free(self) -> None:
        """Frees the context."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)

    def decode(self, entries: list[tuple[int, int, int]], outputs: Sequence[int]) -> list[int]:
        """Runs (token, position, sequence) entries; returns each output's most likely token."""
        return [int(row.argmax()) for row in self._logits(entries, outputs)]

    def _logits(self, entries: list[tuple[int, int, int]], outputs: Sequence[int]) -> list[Any]:
        import numpy as np

        self._run(entries, outputs)
        shape = (self._vocab_size,)
        rows = [self._api.llama_get_logits_ith(self._context, i) for i in outputs]
        return [np.ctypeslib.as_array(row, shape) for row in rows]

    def _run(self, entries: list[tuple[int, int, int]], outputs: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence) in enumerate(entries):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = 0
        for i in outputs:
            batch.logits[i] = 1
        status = self._api.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        self._api.llama_synchronize(self._context)


class LlamaCpp:
    """A GGUF file's model, run by llama.cpp."""

    def __init__(self, file: Path, threads: int, weight_bits: float):
        import llama_cpp

        self._threads = threads
        self._log = silence(llama_cpp)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {file.name}")
        self._contexts: dict[tuple[Setting, int, int, bool], Context] = {}
        self._fastest: dict[tuple[str, int, int], Setting] = {}
        self._notes: dict[tuple[str, int, int], str] = {}
        self.weight_bits = weight_bits
        features = llama_cpp.llama_print_system_info().decode()
        on = [entry.split(" = ")[0].strip() for entry in features.split("|") if "= 1" in entry]
        self.about = (
            f"llama-cpp-python {llama_cpp.__version__}, {file.stem}, float16 KV, {threads} "
            f"threads: {' '.join(on).replace('CPU : ', '')}"
        )
        self._context(Setting(flash=True, unified=False), 1, 512).prefill(1)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""

        def measure(setting: Setting) -> float:
            context = self._context(setting, 1, tokens)
            if context.length() == 0:
                context.prefill(min(tokens, 128))
            start = time.perf_counter()
            context.prefill(tokens)
            return time.perf_counter() - start

        return self._measure_fastest("prefill", 1, tokens, measure)

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`. Reuses the context of an earlier prefill or decode."""

        def measure(setting: Setting) -> float:
            sequences = self._context(setting, batch, context)
            for sequence in range(batch):
                if sequences.length(sequence) < context or not sequences.truncate(
                    context, sequence
                ):
                    sequences.prefill(context, sequence)
            tokens = token_ids(batch, 1000)

            def step() -> None:
                nonlocal tokens
                tokens = sequences.step(tokens)

            return decode_seconds(step)

        return self._measure_fastest("decode", batch, context, measure)

    def serve(self, prompts: Any, output_lens: Any, num_slots: int) -> dict[str, Any]:
        """Runs requests with continuous batching; returns seconds, tokens and a note.

        Uses the setting that is fastest with one request per slot.
        """
        from .llama_cpp_serving import serve_requests

        longest = max(len(p) + n for p, n in zip(prompts, output_lens, strict=True))

        def measure(setting: Setting, count: int = num_slots) -> float:
            context = self._context(setting, num_slots, longest)
            result = serve_requests(context, prompts[:count], output_lens[:count], num_slots)
            return result["seconds"]

        key = ("serve", num_slots, longest)
        if key not in self._fastest:
            self._measure_fastest(*key, measure)
        fastest = self._fastest[key]
        seconds = measure(fastest, len(prompts))
        return {"seconds": seconds, "note": str(fastest), "tokens": sum(output_lens)}

    def embed(self, batch: int, tokens: int) -> dict[str, Any]:
        """Embeds texts; returns "seconds", "vector" (of the first) and "note"."""
        vector: list[float] = []

        def measure(setting: Setting) -> float:
            nonlocal vector
            context = self._context(setting, batch, tokens, embeds=True)
            start = time.perf_counter()
            vector = context.embed(batch, tokens)
            return time.perf_counter() - start

        return {**self._measure_fastest("embed", batch, tokens, measure), "vector": vector}

    def predict(self, ids: list[int]) -> dict[str, Any]:
        """Most likely token after each of a text's tokens."""
        context = self._context(Setting(flash=True, unified=False), 1, 512)
        return {"tokens": context.run(ids, every=True)}

    def loss(self, ids: list[int]) -> dict[str, Any]:
        """Negative log-likelihood of a text, with flash attention."""
        context = self._context(Setting(flash=True, unified=False), 1, len(ids))
        return {"loss": context.loss(ids)}

    def _measure_fastest(self, kind: str, batch: int, tokens: int, measure: Any) -> dict[str, Any]:
        """Measures with the fastest setting; the first call tries all settings."""
        key = (kind, batch, tokens)
        if key in self._fastest:
            return {"seconds": measure(self._fastest[key]), "note": self._notes[key]}
        choices = itertools.product((True, False), (False, True) if batch > 1 else (False,))
        seconds = {}
        for setting in itertools.starmap(Setting, choices):
            seconds[setting] = measure(setting)
            if seconds[setting] > min(seconds.values()) and batch > 1:
                self._contexts.pop((setting, batch, tokens, kind == "embed")).free()
        fastest = min(seconds, key=lambda setting: seconds[setting])
        self._fastest[key] = fastest
        others = [
            f"{setting}: {value / seconds[fastest]:.2f} times as long"
            for setting, value in seconds.items()
            if setting != fastest
        ]
        self._notes[key] = "; ".join([str(fastest), *others])
        return {"seconds": seconds[fastest], "note": self._notes[key]}

    def _context(self, setting: Setting, batch: int, length: int, embeds: bool = False) -> Context:
        key = (setting, batch, length, embeds)
        if key not in self._contexts:
            self._contexts[key] = Context(self._model, self._threads, *key)
        return self._contexts[key]


def silence(llama_cpp: Any) -> Any:
    """Silences llama.cpp's log as long as the returned object is alive."""

    @llama_cpp.llama_log_callback
    def ignore(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
        return

    llama_cpp.llama_log_set(ignore, ctypes.c_void_p(0))
    return ignore


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--weight-bits", type=float, default=4.5)
    arguments = parser.parse_args()
    serve(lambda: LlamaCpp(arguments.file, arguments.threads, arguments.weight_bits))
