"""Decoder configuration, common to all model families."""

from dataclasses import dataclass, field, replace
from typing import Literal

from ...errors import short_repr
from ...kv_storage.int8_rows import KvCacheDtype, kv_row_width
from ...kv_storage.paged_storage import LayerKv
from .config_fields import Fields, invalid_field, positive_int
from .rope import QueryScaling, RopeScaling

DELTA_NET_LAYER, ATTENTION_LAYER = "linear_attention", "full_attention"  # values of `layer_types`
MIN_CONV_KERNEL, MAX_CONV_KERNEL = 2, 8
MAX_STATE_HEAD_DIM = 256
MAX_EXPERTS = 4096
MAX_HEAD_DIM = 512  # limit of the attention kernels; RoPE requires an even size

Activation = Literal["silu", "gelu_tanh", "swigluoai"]  # of a gated MLP; see `kernels.swiglu`


@dataclass(frozen=True)
class MoEConfig:
    num_experts: int
    top_k: int
    intermediate_size: int  # intermediate size I of one expert
    norm_topk_prob: bool
    layers: frozenset[int]  # indices of the layers with experts; other layers have an MLP
    # I of the gated shared expert, applied to every token; None without a shared expert.
    shared_expert_intermediate_size: int | None = None
    activation: Activation = "silu"
    bias: bool = False  # whether the router and the experts have biases
    parallel_mlp: bool = False  # whether experts run in parallel with an MLP, as in Gemma 4


@dataclass(frozen=True)
class DeltaNetConfig:
    """Parameters of the Gated DeltaNet layers, which replace attention."""

    num_key_heads: int  # H_k
    num_value_heads: int  # H_v
    key_head_dim: int  # D_k
    value_head_dim: int  # D_v
    conv_kernel_dim: int  # kernel size K of the convolution, in tokens
    layers: tuple[int, ...]  # indices, ascending; other layers use attention

    @classmethod
    def from_fields(cls, fields: Fields) -> "DeltaNetConfig":
        """Parses `linear_*`, and `layer_types` or `full_attention_interval`."""
        H_k, H_v = (positive_int(fields, f"linear_num_{name}_heads") for name in ("key", "value"))
        if H_v % H_k != 0:
            expected = f"a multiple of linear_num_key_heads {H_k}"
            raise invalid_field("linear_num_value_heads", H_v, expected)
        D_k, D_v = (positive_int(fields, f"linear_{name}_head_dim") for name in ("key", "value"))
        if max(D_k, D_v) > MAX_STATE_HEAD_DIM:
            raise ValueError(
                f"config.json has linear_key_head_dim {D_k} and linear_value_head_dim {D_v}, "
                f"expected at most {MAX_STATE_HEAD_DIM}"
            )
        K = positive_int(fields, "linear_conv_kernel_dim")
        if not MIN_CONV_KERNEL <= K <= MAX_CONV_KERNEL:
            expected = f"{MIN_CONV_KERNEL} to {MAX_CONV_KERNEL}"
            raise invalid_field("linear_conv_kernel_dim", K, expected)
        return cls(H_k, H_v, D_k, D_v, K, _delta_net_layers(fields))

    @property
    def key_dim(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_dim + self.value_dim


@dataclass(frozen=True)
class SlidingWindow:
    # Number of most recent keys a query attends to, including its own; below the context length.
    size: int
    layers: frozenset[int]  # indices of the layers with the window; other layers attend to all keys


@dataclass(frozen=True)
class LocalRope:
    theta: float | None  # RoPE's base, without scaling; None for no rotation (NoPE)
    layers: frozenset[int]  # indices of the layers with this RoPE


@dataclass(frozen=True)
class PerLayerInputConfig:
    vocab_size: int  # rows of the table
    size: int  # features per layer, P


@dataclass(frozen=True)
class DecoderConfig:
    """Decoder configuration from `read_config`; sizes named as in `config.json`."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int  # context length served, including any extension by RoPE scaling
    rms_norm_eps: float
    rope_theta: float
    # Number of leading features per head that RoPE rotates; None for all.
    rotary_dim: int | None = None
    rope_scaling: RopeScaling | None = None
    query_scaling: QueryScaling | None = None  # excludes `local_rope`
    local_rope: LocalRope | None = None
    embedding_scale: float = 1.0  # factor of embeddings, rounded to their dtype
    attention_scale: float | None = None  # factor of attention scores; None for 1/√head_dim
    # Divisor of the residual stream; the norms' outputs do not depend on the stream's scale.
    residual_divisor: float = 1.0
    logits_scaling: float = 1.0  # divisor of logits
    activation: Activation = "silu"  # of the MLP's gate
    post_norms: bool = False  # whether outputs of attention and MLP are normalized, too
    exceeds_float16: bool = False  # whether the residual stream overflows float16: use bfloat16
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_proj_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # whether query and key heads are normalized before RoPE
    zero_centered_norms: bool = False  # whether Hugging Face's norms multiply by 1 + weight
    attention_sinks: bool = False  # whether the softmax's denominator has a logit per query head
    attn_output_gate: bool = False  # whether q_proj also computes a gate for each head's output
    experts: MoEConfig | None = None
    delta_net: DeltaNetConfig | None = None
    sliding_window: SlidingWindow | None = None
    # (H, D) of each layer; empty if all have `num_key_value_heads` and `head_dim`.
    kv_shapes: tuple[tuple[int, int], ...] = ()
    # Source of each layer's keys and values: itself, or an earlier layer with the same shape and
    # window, in which case the layer computes only queries. Empty without sharing.
    kv_sources: tuple[int, ...] = ()
    # Indices of the layers without v_proj, whose values are k_proj's outputs.
    keys_as_values: tuple[int, ...] = ()
    value_norm: bool = False  # whether values are normalized, without a weight
    intermediate_sizes: tuple[int, ...] = ()  # MLP size of each layer; empty if all have the same
    per_layer_inputs: PerLayerInputConfig | None = None
    layer_scalars: bool = False  # whether each layer's outputs are multiplied by a scalar
    logit_softcap: float | None = None  # bound c: logits become c · tanh(logits / c)
    has_mtp: bool = False
    ignored_fields: tuple[str, ...] = field(default=(), compare=False)  # logged at load

    @property
    def mtp_config(self) -> "DecoderConfig":
        """Config of the MTP layer as a single-layer decoder with attention."""
        experts = None if self.experts is None else replace(self.experts, layers=frozenset({0}))
        return replace(self, num_hidden_layers=1, experts=experts, delta_net=None, has_mtp=False)

    @property
    def residual_eps(self) -> float:
        """Epsilon of norms applied to the divided residual stream."""
        return self.rms_norm_eps / self.residual_divisor**2

    @property
    def num_kv_layers(self) -> int:
        return len(self.kv_layers)

    @property
    def kv_layers(self) -> list[int]:
        """Indices of the layers that own keys and values, ascending."""
        layers = range(self.num_hidden_layers)
        return [i for i in layers if not self.has_delta_net(i) and self.kv_source(i) == i]

    def kv_shape_of(self, layer: int) -> tuple[int, int]:
        """A layer's number of key/value heads H, and its head size D."""
        uniform = self.num_key_value_heads, self.head_dim
        return self.kv_shapes[layer] if self.kv_shapes else uniform

    def kv_source(self, layer: int) -> int:
        """Source of a layer's keys and values: itself, or an earlier layer."""
        return self.kv_sources[layer] if self.kv_sources else layer

    def query_dim_of(self, layer: int) -> int:
        """Number of outputs of a layer's q_proj."""
        _, D = self.kv_shape_of(layer)
        return self.num_attention_heads * D * (2 if self.attn_output_gate else 1)

    def intermediate_size_of(self, layer: int) -> int:
        """MLP size of a layer."""
        return self.intermediate_sizes[layer] if self.intermediate_sizes else self.intermediate_size

    def window_of(self, layer: int) -> int:
        """Number of most recent keys a layer's queries attend to; 0 for all."""
        window = self.sliding_window
        return window.size if window is not None and layer in window.layers else 0

    def rope_of(self, layer: int) -> int:
        """Index of a layer's RoPE: 1 for `local_rope`, otherwise 0."""
        return int(self.local_rope is not None and layer in self.local_rope.layers)

    def angles_of(self, layer: int) -> slice:
        """A layer's cosines and sines among those of all RoPEs.

        With `query_scaling`, the first RoPE is for keys and the second for queries.
        """
        first = 2 * self.rope_of(layer)
        return slice(first, first + (2 if self.query_scaling is None else 4))

    def rope_head_dim(self, rope: int) -> int:
        """Head size of the layers with the RoPE of index `rope`."""
        layers = (i for i in range(self.num_hidden_layers) if self.rope_of(i) == rope)
        return next((self.kv_shape_of(i)[1] for i in layers), self.head_dim)

    def has_delta_net(self, layer: int) -> bool:
        return self.delta_net is not None and layer in self.delta_net.layers

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and layer in self.experts.layers


def layers_kv(config: DecoderConfig, kv_cache_dtype: KvCacheDtype) -> list[LayerKv]:
    """Window and row size of each layer that owns keys and values."""
    rows = [(layer, *config.kv_shape_of(layer)) for layer in config.kv_layers]
    min_head_dim = min((D for *_, D in rows), default=1)
    return [
        LayerKv(config.window_of(layer), H, kv_row_width(D, min_head_dim, kv_cache_dtype))
        for layer, H, D in rows
    ]


def check_mtp_fields(fields: Fields, is_hybrid: bool) -> None:
    """Raises ValueError unless a hybrid model has one MTP layer that shares its embedding."""
    if not is_hybrid:
        raise ValueError(f"model type '{fields['model_type']}' has no multi-token prediction layer")
    layers = fields.get("mtp_num_hidden_layers")
    if layers not in (None, 1):  # qwen3_next has one layer but omits the field
        raise ValueError(
            f"config.json has mtp_num_hidden_layers {short_repr(layers)}; multi-token prediction "
            "requires 1"
        )
    if fields.get("mtp_use_dedicated_embeddings"):
        raise ValueError(
            "config.json sets mtp_use_dedicated_embeddings, but multi-token prediction requires "
            "the model's embedding"
        )


def _delta_net_layers(fields: Fields) -> tuple[int, ...]:
    """Indices of the Gated DeltaNet layers: at least one layer, but not all."""
    num_layers, types = positive_int(fields, "num_hidden_layers"), fields.get("layer_types")
    interval = positive_int(fields, "full_attention_interval", 4)
    if types is None:
        types = [
            DELTA_NET_LAYER if (i + 1) % interval else ATTENTION_LAYER for i in range(num_layers)
        ]
    known = (DELTA_NET_LAYER, ATTENTION_LAYER)
    if not isinstance(types, list) or len(types) != num_layers or set(map(str, types)) != {*known}:
        kinds = f"{known[0]} or {known[1]}, with at least one of each"
        raise invalid_field("layer_types", types, f"{num_layers} entries, each {kinds}")
    return tuple(i for i, each in enumerate(types) if each == DELTA_NET_LAYER)
