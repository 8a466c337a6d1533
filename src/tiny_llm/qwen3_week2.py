"""Qwen3 with a KV cache and quantized weights: what Week 2 changes in the model.

A call computes only the new tokens; their keys and values are added to the cache. Weights stay as
the checkpoint stores them and are multiplied in that form. Norms, RoPE and SwiGLU are Week 1's,
each in one operation of the extension: a decode step has hundreds of operations on a few kilobytes,
and MLX's own take longer to schedule than to compute.
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
from .kv_cache.step_plan import PlannedLayers, StepPlan
from .positional_encoding import RoPE
from .quantize import QuantizedEmbedding, QuantizedWeights, check_supported, project, project_each

Weight = QuantizedWeights | mx.array
CosSin = tuple[mx.array, mx.array]  # cosines and sines of the new tokens' angles
# (query B×H_q×L×D, key B×H×L×D, value, the layer's cache, scale) -> B×H_q×L×D: puts the new keys
# and values into the cache, and attends to all that it has. What a week attends with.
AttentionFn = Callable[[mx.array, mx.array, mx.array, Any, float], mx.array]
# (a cache for each layer, B, L) -> where L more tokens of B sequences go; None if it must be asked
# layer by layer.
PlanFn = Callable[[Sequence[Any], int, int], StepPlan | None]


class Qwen3MultiHeadAttention:
    """Week 1's attention with a cache, and with weights in either form.

    Args:
        args: the configuration, as `mlx_lm` reads it.
        mlx_attention: the layer of `mlx_lm` whose weights to use.
        dtype: of the activations.
        attend: how the new tokens attend.
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
        """Attends from the new tokens to themselves and to the past.

        Args:
            x: B×L×E, the new tokens.
            cos_sin: of their positions, from `RoPE.cos_sin`.
            cache: this layer's past.

        Returns:
            B×L×E, dtype of `x`.
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
    """`AttentionFn` through the extension, which reads the cache where it lies."""
    # [task 2.5.4]
    keys, values, context_lens = cache.append(key, value)  # B×H×C×D
    return flash_attention(query, keys, values, scale, "causal", context_lens)
    # [/task 2.5.4]


def attend_grouped(
    query: mx.array, key: mx.array, value: mx.array, cache: TinyKvCache, scale: float
) -> mx.array:
    """`AttentionFn` in plain MLX, in float32."""
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
    """Week 1's MLP with weights in either form.

    Args:
        mlx_mlp: the layer of `mlx_lm` whose weights to use.
    """

    def __init__(self, mlx_mlp: Any):
        self.w_gate = _weight(mlx_mlp.gate_proj)
        self.w_up = _weight(mlx_mlp.up_proj)
        self.w_down = _weight(mlx_mlp.down_proj)

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        gate, up = project_each(x, (self.w_gate, self.w_up))
        return project(kernels.swiglu(gate, up), self.w_down)


class Qwen3TransformerBlock:
    """Week 1's block, with each residual connection added where the next norm reads it.

    Args:
        args: the configuration, as `mlx_lm` reads it.
        mlx_layer: the layer of `mlx_lm` whose weights to use.
        dtype: of the activations.
        attend: how the new tokens attend.
    """

    def __init__(self, args: Any, mlx_layer: Any, dtype: mx.Dtype, attend: AttentionFn):
        self.self_attn = Qwen3MultiHeadAttention(args, mlx_layer.self_attn, dtype, attend)
        self.mlp = Qwen3MLP(mlx_layer.mlp)
        self.input_layernorm = mlx_layer.input_layernorm.weight.astype(dtype)
        self.post_attention_layernorm = mlx_layer.post_attention_layernorm.weight.astype(dtype)
        self.eps = args.rms_norm_eps

    def __call__(
        self, x: mx.array, update: mx.array | None, cos_sin: CosSin, cache: Any
    ) -> tuple[mx.array, mx.array]:
        """One block; its last sum is left to the next block.

        Args:
            x: B×L×E.
            update: B×L×E, what the block before adds to `x`; None before the first.
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
    """Qwen3 with a cache: from new token ids and the past to logits.

    Activations have the dtype of the checkpoint's scales, or of its weights if it is not quantized.

    Args:
        mlx_model: a Qwen3 checkpoint from `mlx_lm.load` or `load_weights`. Its arrays are shared.
        enable_flash_attn: attend through the extension's flash attention; in plain MLX if not.

    Raises:
        ValueError: a kind of quantization that the kernels do not read.
    """

    def __init__(self, mlx_model: Any, enable_flash_attn: bool = False):
        if enable_flash_attn:
            self._build(mlx_model, attend_flash, plan_dense)
        else:
            self._build(mlx_model, attend_grouped)

    def _build(self, mlx_model: Any, attend: AttentionFn, plan: PlanFn | None = None) -> None:
        """Takes the weights, which are every week's from here on, and how this week attends.

        Args:
            mlx_model: the checkpoint.
            attend: how new tokens attend.
            plan: how their places can be planned before the first layer; None if they cannot.
        """
        mlx_model = prepack_model(mlx_model)  # for kernels that want rows of weights interleaved
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
        """An empty cache for one request: one for each layer."""
        # [task 2.1.3 cache]
        return [TinyKvFullCache() for _ in range(self.num_hidden_layers)]
        # [/task 2.1.3 cache]

    def __call__(
        self,
        inputs: mx.array,
        offset: int | Sequence[int] | mx.array,
        cache: list[TinyKvCache],
    ) -> mx.array:
        """Runs the new tokens through the model and adds them to the cache.

        Args:
            inputs: B×L ids, the new tokens.
            offset: the position of the first of them: a number for all sequences, or B numbers.
            cache: one for each layer, from `create_kv_cache`.

        Returns:
            Logits, B×L×V.

        Raises:
            ValueError: there is not one cache for each layer or one offset for each sequence, or
                a position is beyond the model's context.
        """
        return self._logits(*self._run_layers(inputs, offset, cache))

    def next_token_logits(
        self, inputs: mx.array, offset: int | Sequence[int] | mx.array, cache: list[TinyKvCache]
    ) -> mx.array:
        """The logits after the last token alone, B×V; arguments and errors as `__call__`.

        The other logits of a prompt are not needed, and cost a third of what its layers cost.
        """
        x, update = self._run_layers(inputs, offset, cache)
        return self._logits(x[:, -1], update[:, -1])

    def _run_layers(
        self, inputs: mx.array, offset: int | Sequence[int] | mx.array, cache: list[TinyKvCache]
    ) -> tuple[mx.array, mx.array]:
        """Two arrays B×L×E, whose sum is the last layer's output."""
        # [task 2.1.3 positions]
        B, L = inputs.shape
        return self._run_at(inputs, self.rope.cos_sin(_positions(inputs, offset), B, L), cache)
        # [/task 2.1.3 positions]

    def _run_at(
        self, inputs: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """The same, given the rotation of the new tokens' positions."""
        if len(cache) != self.num_hidden_layers:
            raise ValueError(
                f"{type(self).__name__}: {len(cache)} caches were given for "
                f"{self.num_hidden_layers} layers."
            )
        return self._run_layers_from(self.embedding(inputs), cos_sin, cache)

    def _run_layers_from(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """The same, from the tokens' embeddings B×L×E."""
        try:
            found = self._try_run_planned(x, cos_sin, cache)
        except TaskNotImplemented:  # Week 4 writes that
            if capture_required():
                raise
            found = None
        return self._run_each_layer(x, cos_sin, cache) if found is None else found

    def _try_run_planned(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array] | None:
        """The same for a decoding step, recorded; None for what is left to `_run_each_layer`.

        That is a prompt, a step of a model whose attention cannot be planned (`_plan` is None: one
        without flash attention), and a step for which the caches must make room first.
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
        """The same, with what each layer writes to: its cache, or its part of a plan."""
        # [task 2.1.3 layers]
        update = None
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x, update = layer(x, update, cos_sin, layer_cache)
        assert update is not None  # a model has layers
        return x, update
        # [/task 2.1.3 layers]

    def _logits(self, x: mx.array, update: mx.array) -> mx.array:
        """N..×E and N..×E, the last layer's two arrays -> N..×V."""
        # [task 2.1.3 logits]
        _, x = kernels.add_rms_norm(x, update, self.norm, self.eps)
        return project(x, self.w_lm_head)
        # [/task 2.1.3 logits]


def _add_and_norm(
    x: mx.array, update: mx.array | None, weight: mx.array, eps: float
) -> tuple[mx.array, mx.array]:
    """x + update, and its RMSNorm."""
    if update is None:
        return x, kernels.rms_norm(x, weight, eps)
    return kernels.add_rms_norm(x, update, weight, eps)


def _positions(inputs: mx.array, offset: int | Sequence[int] | mx.array) -> slice | list[slice]:
    """The new tokens' positions: a slice of length L for all sequences, or one for each."""
    B, L = inputs.shape
    given: Any = offset.tolist() if isinstance(offset, mx.array) else offset
    if isinstance(given, Integral):  # NumPy's integers are of this kind, too
        return slice(int(given), int(given) + L)
    if len(given) != B:
        raise ValueError(f"Qwen3: {len(given)} offsets were given for a batch of {B}.")
    # [task 2.7.3 positions]
    return [slice(start, start + L) for start in given]
    # [/task 2.7.3 positions]


def _weight(mlx_layer: Any) -> Weight:
    """A layer's weight as the checkpoint stores it. Raises ValueError if no kernel reads it."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer.weight
    # [task 2.3.4 weight]
    weight = QuantizedWeights.from_mlx_layer(mlx_layer)
    # [/task 2.3.4 weight]
    check_supported(weight)
    return weight
