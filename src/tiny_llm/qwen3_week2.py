"""Week 2's Qwen3: KV cache and quantized weights.

Written twice on purpose: `models/families/decoder.py` has the engine's layers, for all families.

A call computes only the new tokens and appends their keys and values to the cache. Weights keep
the checkpoint's format and are multiplied without dequantization. Norms, RoPE and SwiGLU are
computed as in Week 1, but each as one operation in the extension. This saves time because a decode
step has hundreds of operations on a few kilobytes, which take MLX longer to schedule than to
compute.
"""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import mlx.core as mx

from . import kernels
from .attention import flash_attention, scaled_dot_product_attention_grouped
from .embedding import Embedding
from .errors import TaskNotImplemented
from .kernels.graph_capture import capture_required, is_decode_step
from .kernels.prepack import prepack_model
from .kv_cache import TinyKvCache, TinyKvFullCache
from .kv_cache.planning import plan_dense
from .kv_storage.step_plan import PlannedLayers, StepPlan
from .positional_encoding import RoPE
from .quantize import QuantizedEmbedding, QuantizedWeights, check_supported, project, project_each

Weight = QuantizedWeights | mx.array
CosSin = tuple[mx.array, mx.array]  # cosines and sines of the new tokens' RoPE angles
# Attention backend: (query B×H_q×L×D, key B×H×L×D, value, layer cache, scale) -> B×H_q×L×D.
# Appends the new keys and values to the cache and attends to its contents.
AttentionFn = Callable[[mx.array, mx.array, mx.array, Any, float], mx.array]
# (one cache per layer, B, L) -> plan for L more tokens in each of B sequences, or None.
PlanFn = Callable[[Sequence[Any], int, int], StepPlan | None]


class Qwen3MultiHeadAttention:
    """Week 1's attention with a KV cache and quantized or plain weights.

    Args:
        args, mlx_attention: configuration and layer of an `mlx_lm` model.
        dtype: dtype of the activations.
    """

    def __init__(self, args: Any, mlx_attention: Any, dtype: mx.Dtype, attend: AttentionFn):
        self.num_heads = args.num_attention_heads
        self.num_kv_heads = args.num_key_value_heads
        self.head_dim = args.head_dim
        self.scale = args.head_dim**-0.5
        self.wq = _weight(mlx_attention.q_proj)
        self.wk = _weight(mlx_attention.k_proj)
        self.wv = _weight(mlx_attention.v_proj)
        self.wo = _weight(mlx_attention.o_proj)
        self.q_norm = mlx_attention.q_norm.weight.astype(dtype)
        self.k_norm = mlx_attention.k_norm.weight.astype(dtype)
        self.eps = args.rms_norm_eps
        self._attend = attend

    def __call__(self, x: mx.array, cos_sin: CosSin, cache: Any) -> mx.array:
        """Attends from the new tokens to cached and new tokens.

        Args:
            x: B×L×E, the new tokens; shape and dtype of the result.
            cos_sin: cosines and sines for the tokens' positions, from `RoPE.cos_sin`.
            cache: this layer's KV cache.
        """
        # [task 2.1.2 attention]
        B, L, _ = x.shape
        H_q, H, D = self.num_heads, self.num_kv_heads, self.head_dim
        query, key, value = project_each(x, (self.wq, self.wk, self.wv))
        query = query.reshape(B, L, H_q, D)
        key = key.reshape(B, L, H, D)
        value = value.reshape(B, L, H, D).swapaxes(1, 2)  # B×H×L×D
        query = kernels.qk_norm_rope(query, self.q_norm, self.eps, *cos_sin)  # B×H_q×L×D
        key = kernels.qk_norm_rope(key, self.k_norm, self.eps, *cos_sin)  # B×H×L×D
        attended = self._attend(query, key, value, cache, self.scale)  # B×H_q×L×D
        return project(attended.swapaxes(1, 2).reshape(B, L, H_q * D), self.wo)
        # [/task 2.1.2 attention]


def attend_flash(
    query: mx.array, key: mx.array, value: mx.array, cache: TinyKvCache, scale: float
) -> mx.array:
    """Attention backend: flash attention, which reads the cache in place.

    The engine's, over pages, is in `models/families/attention_backends.py`.
    """
    # [task 2.5.4]
    keys, values, context_lens = cache.append(key, value)  # B×H×capacity×D
    return flash_attention(query, keys, values, scale, "causal", context_lens)
    # [/task 2.5.4]


def attend_grouped(
    query: mx.array, key: mx.array, value: mx.array, cache: TinyKvCache, scale: float
) -> mx.array:
    """Attention backend in plain MLX, computed in float32."""
    # [task 2.1.2 grouped]
    keys, values, _, mask = cache.update_and_fetch(
        key, value, mask_length=key.shape[2], mask="causal"
    )  # B×H×S×D
    return scaled_dot_product_attention_grouped(
        query.astype(mx.float32),
        keys.astype(mx.float32),
        values.astype(mx.float32),
        scale=scale,
        mask=mask,
    ).astype(query.dtype)
    # [/task 2.1.2 grouped]


class Qwen3MLP:
    """Week 1's MLP with an `mlx_lm` layer's quantized or plain weights."""

    def __init__(self, mlx_mlp: Any):
        self.w_gate = _weight(mlx_mlp.gate_proj)
        self.w_up = _weight(mlx_mlp.up_proj)
        self.w_down = _weight(mlx_mlp.down_proj)

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


class Qwen3ModelWeek2:
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
        table = _weight(mlx_model.model.embed_tokens)
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
        self.w_lm_head = table if args.tie_word_embeddings else _weight(mlx_model.lm_head)
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

    def _run_layers_from(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers on embeddings x B×L×E, as a captured graph where possible."""
        try:
            outputs = self._try_run_planned(x, cos_sin, cache)
        except TaskNotImplemented:  # the learner has yet to implement Week 4's graph capture
            if capture_required():
                raise
            outputs = None
        return self._run_each_layer(x, cos_sin, cache) if outputs is None else outputs

    def _try_run_planned(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array] | None:
        """Runs a decode step as a captured graph, or returns None to fall back.

        The fallback, `_run_each_layer`, applies to prompts, to attention without a planner (no
        flash attention), and to steps that require a cache to grow first.
        """
        # [task 4.7.4]
        if self._plan is None or not is_decode_step(x):
            return None
        B, L, _ = x.shape
        step_plan = self._plan(cache, B, L)
        return None if step_plan is None else self._run_planned(x, cos_sin, step_plan)
        # [/task 4.7.4]

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


def _weight(mlx_layer: Any) -> Weight:
    """Returns a layer's weight as stored; ValueError if unsupported."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer.weight
    # [task 2.3.4 weight]
    weight = QuantizedWeights.from_mlx_layer(mlx_layer)
    # [/task 2.3.4 weight]
    check_supported(weight)
    return weight
