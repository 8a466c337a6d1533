"""transformers, bfloat16, as a worker: `python -m benchmark.systems.transformers_worker FOLDER`."""

import os
import time
from pathlib import Path
from typing import Any

from .worker import decode_seconds, num_threads, serve_folder, token_ids


class Transformers:
    """A bfloat16 checkpoint run with transformers' defaults: SDPA, dynamic cache."""

    def __init__(self, folder: Path):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        self._torch = torch
        torch.set_num_threads(num_threads())
        torch.set_grad_enabled(False)
        self._new_cache: Any = transformers.DynamicCache
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.bfloat16
        )
        self._config = self._model.config
        self.weight_bits = 16.0
        self.about = (
            f"transformers {transformers.__version__}, torch {torch.__version__}, bfloat16, "
            f"{self._config._attn_implementation}, {torch.get_num_threads()} threads"
        )
        self._prefill(1)
        self._is_warm = False

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        if not self._is_warm:
            self._prefill(min(tokens, 128))
            self._is_warm = True
        start = time.perf_counter()
        self._prefill(tokens)
        return {"seconds": time.perf_counter() - start}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        torch = self._torch
        cache = self._new_cache()
        shape = (batch, self._config.num_key_value_heads, context, self._config.head_dim)
        for layer in range(self._config.num_hidden_layers):
            cache.update(
                torch.randn(shape, dtype=torch.bfloat16),
                torch.randn(shape, dtype=torch.bfloat16),
                layer,
            )
        tokens = torch.tensor(token_ids(batch, self._config.vocab_size))[:, None]

        def step() -> None:
            nonlocal tokens
            logits = self._model(tokens, past_key_values=cache, use_cache=True).logits
            tokens = logits[:, -1].argmax(-1, keepdim=True)

        return {"seconds": decode_seconds(step)}

    def _prefill(self, tokens: int) -> None:
        ids = self._torch.tensor([token_ids(tokens, self._config.vocab_size)])
        cache = self._new_cache()
        output = self._model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        output.logits[:, -1].argmax(-1).item()


if __name__ == "__main__":
    serve_folder(__doc__, Transformers)
