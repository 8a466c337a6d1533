"""Multi-token prediction (MTP) layer: predicts the token after the next one.

Qwen3.5 checkpoints have an extra decoder layer, trained to predict one token further:

    h_t          the model's hidden state at position t, after the final norm
    x_{t+1}      the next token, sampled from h_t
    g_t          = norm(layer(fc([norm(embedding(x_{t+1})) | norm(h_t)])))
    LM head(g_t) logits of x_{t+2}

The layer shares the model's embedding and LM head. In the next drafting step, g_t replaces
h_{t+1}, so the layer can draft any number of tokens. Its KV cache holds all positions before t,
computed from the model's hidden states.

Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2, arXiv 2412.19437; Qwen's
layer takes the hidden state after the final norm, as in vLLM.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ... import kernels
from ...kv_storage import PagedStorage, RaggedBatch
from ..checkpoint.weights import CheckpointModel, TreeNode
from ..families.decoder import Decoder, norm_weight
from ..families.linear import linear_from


class MtpDecoder(Decoder):
    """MTP layer as a single-layer decoder; needs `load_weights(…, mtp=True)`."""

    def __init__(self, mlx_model: CheckpointModel, *args: Any, **options: Any):
        super().__init__(mtp_checkpoint(mlx_model), *args, **options)
        mtp = mlx_model.mtp
        self.fc = linear_from(mtp.fc, self.dtype)
        self.embedding_norm = norm_weight(self.config, mtp.pre_fc_norm_embedding, self.dtype)
        self.hidden_norm = norm_weight(self.config, mtp.pre_fc_norm_hidden, self.dtype)

    def mtp_features(
        self,
        ids: Sequence[int] | mx.array,
        hidden: mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Like `ragged_features`, but returns g_t; see the module docstring.

        Args:
            ids: T token ids: x_{t+1}, the token after each position t of the batch.
            hidden: T×hidden_size: h_t, or g_{t-1} after the first drafting step.
            batch, rows, storage: see `ServingModel.ragged_logits`.

        Returns:
            g_t for each of `rows`, len(rows)×hidden_size.
        """
        x = kernels.rms_norm(
            self.embedding(kernels.as_int32(ids)[None]), self.embedding_norm, self.eps
        )
        hidden = kernels.rms_norm(hidden[None], self.hidden_norm, self.eps)
        return self._features(self.fc(mx.concatenate([x, hidden], axis=-1)), batch, rows, storage)


def mtp_checkpoint(mlx_model: CheckpointModel) -> CheckpointModel:
    model = TreeNode()
    model.embed_tokens = mlx_model.model.embed_tokens
    model.layers, model.norm = mlx_model.mtp.layers, mlx_model.mtp.norm
    parts = {"model": model}
    if not mlx_model.args.tie_word_embeddings:
        parts["lm_head"] = mlx_model.lm_head
    return CheckpointModel(mlx_model.args.mtp_config, parts)
