"""mlx-lm as a worker: `python -m benchmark.systems.mlx_lm_worker FOLDER`.

Without a GPU, mlx-lm takes seconds per token, so prompts are extrapolated from a few tokens.
"""

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmark.model_costs import ModelCosts

from .worker import UnsupportedError, decode_seconds, serve_folder, token_ids

FEW_TOKENS = 8


class MlxLm:
    """A model that mlx-lm loads from a checkpoint folder."""

    def __init__(self, folder: Path):
        import mlx.core as mx
        import mlx_lm

        self._mx = mx
        self._model: Any = mlx_lm.load(str(folder))[0]
        self._is_slow = not mx.is_available(mx.Device(mx.gpu))
        self.weight_bits = ModelCosts.from_folder(folder).weight_bits
        self.about = f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}"
        self._prefill(1)

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        if not self._is_slow:
            return {"seconds": self._prefill(tokens)}
        if tokens > 512:
            raise UnsupportedError("without a GPU, mlx-lm takes hours for a long prompt.")
        return {
            "seconds": self._prefill(FEW_TOKENS) * tokens / FEW_TOKENS,
            "note": f"{FEW_TOKENS} tokens measured and scaled to {tokens}",
        }

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        if self._is_slow and (batch > 1 or context > 512):
            raise UnsupportedError("without a GPU, mlx-lm takes seconds per token.")
        mx, args = self._mx, self._model.args
        cache = self._new_cache()
        shape = (batch, args.num_key_value_heads, context, args.head_dim)
        key, value = (mx.random.normal(shape).astype(mx.bfloat16) for _ in range(2))
        for layer in cache:
            layer.update_and_fetch(key, value)
        tokens = mx.array(token_ids(batch, args.vocab_size))

        def step() -> None:
            nonlocal tokens
            tokens = mx.argmax(self._model(tokens[:, None], cache=cache)[:, -1], axis=-1)
            mx.eval(tokens)

        return {"seconds": decode_seconds(step)}

    def _prefill(self, tokens: int) -> float:
        mx = self._mx
        start = time.perf_counter()
        ids = mx.array([token_ids(tokens, self._model.args.vocab_size)])
        cache = self._new_cache()
        # Like mlx_lm.generate: all tokens but the last in chunks, then the last one.
        for first in range(0, tokens - 1, 2048):
            self._model(ids[:, first : min(first + 2048, tokens - 1)], cache=cache)
            mx.eval([layer.state for layer in cache])
        mx.eval(mx.argmax(self._model(ids[:, -1:], cache=cache)[:, -1], axis=-1))
        return time.perf_counter() - start

    def _new_cache(self) -> Any:
        from mlx_lm.models.cache import make_prompt_cache

        return make_prompt_cache(self._model)


if __name__ == "__main__":
    serve_folder(__doc__, MlxLm)
