"""Week 2's MLP, transformer block and model."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import mlx.core as mx

from .. import kernels
from ..embedding import Embedding
from ..kernels.prepack import prepack_model
from ..kv_cache import TinyKvCache, TinyKvFullCache
from ..kv_cache.planning import plan_dense
from ..kv_storage.paged_storage import PlannedLayers
from ..positional_encoding import RoPE
from ..quantize import QuantizedEmbedding, QuantizedWeights, project, project_each
from .attention import (
    AttentionFn,
    CosSin,
    Qwen3MultiHeadAttention,
    attend_flash,
    attend_grouped,
)
from .captured import CapturedSteps, PlanFn
from .weights import layer_weight


class Qwen3MLP:
    """Week 1's MLP with an `mlx_lm` layer's quantized or plain weights."""

    def __init__(self, mlx_mlp: Any):
        self.w_gate = layer_weight(mlx_mlp.gate_proj)
        self.w_up = layer_weight(mlx_mlp.up_proj)
        self.w_down = layer_weight(mlx_mlp.down_proj)

    def __call__(self, x: mx.array) -> mx.array:
        """Applies the MLP: N..×E -> N..×E."""
        gate, up = project_each(x, (self.w_gate, self.w_up))
        return project(kernels.swiglu(gate, up), self.w_down)


class Qwen3TransformerBlock:
    """Week 1's block with each residual addition fused into the next norm."""

    def __init__(self, args: Any, mlx_layer: Any, dtype: mx.Dtype, attend: AttentionFn):
        self.self_attn = Qwen3MultiHeadAttention(args, mlx_layer.self_attn, dtype, attend)
        self.mlp = Qwen3MLP(mlx_layer.mlp)
        self.input_layernorm = mlx_layer.input_layernorm.weight.astype(dtype)
        self.post_attention_layernorm = mlx_layer.post_attention_layernorm.weight.astype(dtype)
        self.eps = args.rms_norm_eps

    def __call__(
        self, x: mx.array, update: mx.array | None, cos_sin: CosSin, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """Runs the block without the final addition, which the next block does.

        Args:
            x: B×L×E.
            update: B×L×E, the previous block's MLP output, to be added to `x`; None for the first
                block.
            cos_sin, cache: as in `Qwen3MultiHeadAttention`.

        Returns:
            (x, update), both B×L×E; the block's output is their sum.
        """
        # [task 2.1.3 block]
        x, normed = _add_and_norm(x, update, self.input_layernorm, self.eps)
        update = self.self_attn(normed, cos_sin, cache)
        x, normed = _add_and_norm(x, update, self.post_attention_layernorm, self.eps)
        return x, self.mlp(normed)
        # [/task 2.1.3 block]


class Qwen3ModelWeek2(CapturedSteps):
    """Qwen3 with a KV cache: new token ids to logits.

    Activations have the dtype of the checkpoint's scales, or of its weights if unquantized.

    Args:
        mlx_model: a Qwen3 checkpoint from `mlx_lm.load` or `load_weights`, or any objects with the
            same attributes. Its arrays are shared.
        enable_flash_attn: use the extension's flash attention instead of plain MLX.

    Raises:
        ValueError: the kernels do not support the checkpoint's quantization.
    """

    def __init__(self, mlx_model: Any, enable_flash_attn: bool = False):
        if enable_flash_attn:
            self._build(mlx_model, attend_flash, plan_dense)
        else:
            self._build(mlx_model, attend_grouped)

    def _build(self, mlx_model: Any, attend: AttentionFn, plan: PlanFn | None = None) -> None:
        """Builds the layers, also for Week 3's model, whose backend is paged.

        `plan` plans decode steps; None if the backend does not support planning.
        """
        mlx_model = prepack_model(mlx_model)
        args = mlx_model.args
        self.num_hidden_layers = args.num_hidden_layers
        self.hidden_size = args.hidden_size
        self.vocab_size = args.vocab_size
        self.max_seq_len = args.max_position_embeddings
        table = layer_weight(mlx_model.model.embed_tokens)
        self.embedding: Embedding | QuantizedEmbedding
        if isinstance(table, QuantizedWeights):
            # [task 2.3.4 embedding]
            dtype = table.scales.dtype
            self.embedding = QuantizedEmbedding(args.vocab_size, args.hidden_size, table)
            # [/task 2.3.4 embedding]
        else:
            dtype = table.dtype
            self.embedding = Embedding(args.vocab_size, args.hidden_size, table)
        self.layers = [
            Qwen3TransformerBlock(args, layer, dtype, attend) for layer in mlx_model.model.layers
        ]
        self.norm = mlx_model.model.norm.weight.astype(dtype)
        self.eps = args.rms_norm_eps
        self.rope = RoPE(args.head_dim, args.max_position_embeddings, base=args.rope_theta)
        self.w_lm_head = table if args.tie_word_embeddings else layer_weight(mlx_model.lm_head)
        self._plan = plan
        self._run_planned = PlannedLayers(self._run_each_layer, self.num_hidden_layers)

    def create_kv_cache(self) -> list[TinyKvCache]:
        """Creates one request's empty caches, one per layer."""
        # [task 2.1.3 cache]
        return [TinyKvFullCache() for _ in range(self.num_hidden_layers)]
        # [/task 2.1.3 cache]

    def __call__(
        self,
        inputs: mx.array,
        offset: int | Sequence[int] | mx.array,
        cache: list[TinyKvCache],
    ) -> mx.array:
        """Runs the model on new tokens and appends them to the cache: logits B×L×V.

        Args:
            inputs: B×L ids, the new tokens.
            offset: position of the first new token: one for all sequences, or one per sequence.
            cache: one cache per layer, from `create_kv_cache`.

        Raises:
            ValueError: the number of caches is not the number of layers, the number of offsets is
                not B, or a position exceeds the model's context.
        """
        return self._logits(*self._run_layers(inputs, offset, cache))

    def next_token_logits(
        self, inputs: mx.array, offset: int | Sequence[int] | mx.array, cache: list[TinyKvCache]
    ) -> mx.array:
        """Returns the last token's logits, B×V; for arguments, see `__call__`.

        The logits of a prompt's other tokens are unused, and would take a third as long to compute
        as all layers.
        """
        x, update = self._run_layers(inputs, offset, cache)
        return self._logits(x[:, -1], update[:, -1])

    def _run_layers(
        self, inputs: mx.array, offset: int | Sequence[int] | mx.array, cache: list[TinyKvCache]
    ) -> tuple[mx.array, mx.array]:
        """Runs embedding and layers: (x, update), B×L×E, whose sum is the output."""
        if len(cache) != self.num_hidden_layers:
            raise ValueError(
                f"{type(self).__name__}: expected {self.num_hidden_layers} caches, one per layer, "
                f"got {len(cache)}."
            )
        # [task 2.1.3 positions]
        B, L = inputs.shape
        cos_sin = self.rope.cos_sin(_positions(inputs, offset), B, L)
        return self._run_layers_from(self.embedding(inputs), cos_sin, cache)
        # [/task 2.1.3 positions]

    def _run_each_layer(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers one by one, each with its KV cache or `LayerCacheView`."""
        # [task 2.1.3 layers]
        update = None
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x, update = layer(x, update, cos_sin, layer_cache)
        assert update is not None  # there is at least one layer
        return x, update
        # [/task 2.1.3 layers]

    def _logits(self, x: mx.array, update: mx.array) -> mx.array:
        """Applies the final norm and the output projection to x + update: N..×V."""
        # [task 2.1.3 logits]
        _, x = kernels.add_rms_norm(x, update, self.norm, self.eps)
        return project(x, self.w_lm_head)
        # [/task 2.1.3 logits]


def _add_and_norm(
    x: mx.array, update: mx.array | None, weight: mx.array, eps: float
) -> tuple[mx.array, mx.array]:
    """Returns x + update and its RMSNorm; an `update` of None counts as zero."""
    if update is None:
        return x, kernels.rms_norm(x, weight, eps)
    return kernels.add_rms_norm(x, update, weight, eps)


def _positions(inputs: mx.array, offset: int | Sequence[int] | mx.array) -> slice | list[slice]:
    """Returns the new tokens' positions: one slice, or one per sequence."""
    B, L = inputs.shape
    offsets: Any = offset.tolist() if isinstance(offset, mx.array) else offset
    if isinstance(offsets, Integral):  # includes NumPy integers
        return slice(int(offsets), int(offsets) + L)
    if len(offsets) != B:
        raise ValueError(f"Qwen3: expected {B} offsets, one per sequence, got {len(offsets)}.")
    # [task 2.7.3 positions]
    return [slice(start, start + L) for start in offsets]
    # [/task 2.7.3 positions]
