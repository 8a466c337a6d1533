"""sentence-transformers in bfloat16 as a worker."""

import os
import time
from pathlib import Path
from typing import Any

from .worker import num_threads, serve_folder, token_ids


class SentenceTransformers:
    """A bfloat16 embedding model; measures `embed` only."""

    def __init__(self, folder: Path):
        os.environ["HF_HUB_OFFLINE"] = "1"
        import sentence_transformers
        import torch

        self._torch = torch
        torch.set_num_threads(num_threads())
        torch.set_grad_enabled(False)
        self._model: Any = sentence_transformers.SentenceTransformer(
            str(folder), device="cpu", model_kwargs={"dtype": torch.bfloat16}
        )
        self._vocab_size = self._model[0].auto_model.config.vocab_size
        self.weight_bits = 16.0
        self.about = (
            f"sentence-transformers {sentence_transformers.__version__}, torch "
            f"{torch.__version__}, bfloat16, {torch.get_num_threads()} threads"
        )
        self.embed(1, 8)

    def embed(self, batch: int, tokens: int) -> dict[str, Any]:
        """Embeds `batch` texts; returns {"seconds": …, "vector": of the first text}."""
        ids = self._torch.tensor([token_ids(tokens, self._vocab_size)] * batch)
        start = time.perf_counter()
        features = {"input_ids": ids, "attention_mask": self._torch.ones_like(ids)}
        vectors = self._model(features)["sentence_embedding"].float()
        vector = vectors[0].tolist()
        return {"seconds": time.perf_counter() - start, "vector": vector}

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        return self.embed(1, tokens)

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        raise NotImplementedError("embedding models do not decode")


if __name__ == "__main__":
    serve_folder(__doc__, SentenceTransformers)
