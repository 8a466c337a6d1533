"""Mixture of experts: a router selects a few of many MLPs for each token.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

Routing and the weighted sum use MLX operations on a GPU, and one operation of the extension each on
a CPU. `make_experts` selects the matmuls by device and weight format.

Source: Shazeer et al., "Outrageously Large Neural Networks" (2017), arXiv 1701.06538.
"""

import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import mlx.core as mx

from ... import kernels
from ...kernels.prepack import QUANTIZED_ARRAYS, row_major_layer
from ...quantize import QuantizedWeights
from .config import Activation, DecoderConfig, MoEConfig
from .linear import Linear, Mlp, linear_from

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
EXPERT_ARRAYS = (*QUANTIZED_ARRAYS, "bias")

# On a GPU, (token, expert) pairs are sorted by expert if there are at least this many, so that
# consecutive matmuls read the same weights.
MIN_PAIRS_TO_SORT = 64


def sort_by_expert(experts: mx.array) -> tuple[mx.array, mx.array]:
    """Computes the permutation that sorts products by expert, and its inverse.

    Args:
        experts: expert ids of P products; a product is a token's row times one expert's matrix.

    Returns:
        (order, inverse), P indices each: `experts[order]` is sorted (stably on a CPU), and
        `experts[order][inverse]` equals `experts`.
    """
    # [task 6.1.2 sort]
    order = mx.argsort(experts)  # stable on a CPU
    return order, mx.argsort(order)
    # [/task 6.1.2 sort]


def expert_segments(experts: mx.array) -> list[tuple[int, int, int]]:
    """Finds each expert's rows among sorted products; syncs with the device.

    Args:
        experts: expert ids of P products, in ascending order.

    Returns:
        (expert, first, end) per selected expert: its products are rows `first` to `end` − 1.
    """
    numbers: list[int] = experts.tolist()  # type: ignore[assignment]
    # [task 6.1.2 runs]
    runs, first = [], 0
    for expert, same in groupby(numbers):
        end = first + len(list(same))
        runs.append((expert, first, end))
        first = end
    return runs
    # [/task 6.1.2 runs]


@dataclass(frozen=True)
class GroupedExperts:
    """Experts computed by the extension's quantized grouped matmul.

    A step reads each selected expert's matrices once. Only the kernel reads the expert ids, so the
    step's graph can be captured.
    """

    gate: Linear  # X×I×E, for X experts of MLP size I
    up: Linear  # X×I×E
    down: Linear  # X×E×I
    activation: Activation
    needs_host_sync: ClassVar[bool] = False

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """Maps tokens N..×E and their expert ids N..×K to outputs N..×K×E."""
        gate = _grouped(x, self.gate, experts)  # N..×K×I
        up = _grouped(x, self.up, experts)
        return _grouped(kernels.swiglu(gate, up, self.activation), self.down, experts)


class SeparateExperts:
    """Experts computed as separate MLPs.

    The host reads the expert ids before the matmuls, so a step cannot be captured.

    Args:
        stacked: layers with the stacked matrices X×O×I of all X experts.
    """

    needs_host_sync = True

    def __init__(self, stacked: Any, dtype: mx.Dtype, activation: Activation = "silu"):
        num_experts = stacked.gate_proj.weight.shape[0]
        self.experts = [
            Mlp(_expert(stacked, index), dtype, activation) for index in range(num_experts)
        ]

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        """Maps tokens N..×E and their expert ids N..×K to outputs N..×K×E."""
        K, E = experts.shape[-1], x.shape[-1]
        if experts.size == 0:
            return mx.zeros((*experts.shape, E), x.dtype)
        # [task 6.1.3 separate]
        of_products = experts.flatten()  # T·K
        order, inverse = sort_by_expert(of_products)
        rows = x.reshape(-1, E)[order // K]  # T·K×E: product p is for token p // K
        outputs = [
            self.experts[expert](rows[first:end])
            for expert, first, end in expert_segments(of_products[order])
        ]
        return mx.concatenate(outputs)[inverse].reshape(*experts.shape, E)
        # [/task 6.1.3 separate]


class GatheredExperts:
    """Experts computed by MLX's gathered matmul, without a host sync."""

    needs_host_sync = False

    def __init__(self, stacked: Any, activation: Activation = "silu"):
        self.layers = [row_major_layer(stacked[name]) for name in PROJECTIONS]
        self.activation = activation

    def __call__(self, x: mx.array, experts: mx.array) -> mx.array:
        K, E = experts.shape[-1], x.shape[-1]
        pairs = experts.flatten()  # T·K
        order = inverse = mx.arange(pairs.size)
        is_sorted = pairs.size >= MIN_PAIRS_TO_SORT
        if is_sorted:
            order, inverse = sort_by_expert(pairs)
        rows = x.reshape(-1, E)[order // K][:, None]  # T·K×1×E
        chosen = pairs[order]
        gate, up = (_gathered(rows, layer, chosen, is_sorted) for layer in self.layers[:2])
        product = kernels.swiglu(gate, up, self.activation)
        out = _gathered(product, self.layers[2], chosen, is_sorted)
        return out[inverse, 0].reshape(*experts.shape, E)


Experts = GroupedExperts | SeparateExperts | GatheredExperts


def make_experts(stacked: Any, dtype: mx.Dtype, activation: Activation = "silu") -> Experts:
    """Selects the fastest implementation of stacked `PROJECTIONS` for the device and format."""
    if not kernels.computes_on_cpu():
        return GatheredExperts(stacked, activation)
    # [solution only]
    gate, up, down = (linear_from(stacked[name], dtype) for name in PROJECTIONS)
    if all(isinstance(layer.weight, QuantizedWeights) for layer in (gate, up, down)):
        return GroupedExperts(gate, up, down, activation)
    # [/solution only]
    return SeparateExperts(stacked, dtype, activation)


def _grouped(x: mx.array, layer: Linear, experts: mx.array) -> mx.array:
    """Applies K experts' layers to rows: N..×I or N..×K×I -> N..×K×O."""
    w = layer.weight
    assert isinstance(w, QuantizedWeights)
    arrays = x, w.weight, experts
    y = kernels.grouped_quantized_matmul(
        w.scales, w.biases, w.group_size, w.bits, *arrays, activation_bits=w.activation_bits
    )
    return y if layer.bias is None else kernels.add_bias(y, layer.bias, experts)


def _gathered(x: mx.array, layer: Any, experts: mx.array, is_sorted: bool) -> mx.array:
    """Multiplies each of N rows by its expert's matrix: N×1×I -> N×1×O."""
    if "scales" in layer:
        y = mx.gather_qmm(
            x,
            layer.weight,
            layer.scales,
            layer.biases if "biases" in layer else None,
            rhs_indices=experts,
            transpose=True,
            group_size=layer.group_size,
            bits=layer.bits,
            mode=getattr(layer, "mode", "affine"),
            sorted_indices=is_sorted,
        ).astype(x.dtype)
    else:
        weight = layer.weight.astype(x.dtype).swapaxes(-1, -2)
        y = mx.gather_mm(x, weight, rhs_indices=experts, sorted_indices=is_sorted)
    return y + layer.bias[experts][:, None].astype(x.dtype) if "bias" in layer else y


def _expert(stacked: Any, index: int) -> Any:
    expert = copy.copy(stacked)
    for name in PROJECTIONS:
        layer = copy.copy(stacked[name])
        for part in EXPERT_ARRAYS:
            if part in layer:
                setattr(layer, part, layer[part][index])
        setattr(expert, name, layer)
    return expert


def select_experts(logits: mx.array, k: int, normalized: bool) -> tuple[mx.array, mx.array]:
    """Router: selects each token's experts and their routing weights.

    Args:
        logits: N..×X for X experts, in any dtype; compared in float32.
        k: number of experts per token, 1 to X.
        normalized: whether the k routing weights are divided by their sum.

    Returns:
        (ids of the k most probable experts, most probable first, N..×k uint32; their softmax
        probabilities over all X experts, normalized if `normalized`, N..×k float32).
    """
    # [task 6.1.1 choose]
    scores = logits.astype(mx.float32)
    experts = mx.argsort(-scores, axis=-1)[..., :k]
    routing_weights = mx.take_along_axis(
        mx.softmax(scores, axis=-1, precise=True), experts, axis=-1
    )
    if normalized:
        routing_weights = routing_weights / mx.sum(routing_weights, axis=-1, keepdims=True)
    return experts, routing_weights
    # [/task 6.1.1 choose]


def combine_experts(outputs: mx.array, routing_weights: mx.array) -> mx.array:
    """Sums each token's weighted outputs: Σ_k routing_weights[k] · outputs[k, :].

    Args:
        outputs: N..×K×E for K experts per token, in any dtype; accumulated in float32.
        routing_weights: N..×K float32.

    Returns:
        N..×E in the dtype of `outputs`, rounded once.
    """
    # [task 6.1.4 add-up]
    parts = outputs.astype(mx.float32) * routing_weights[..., None]  # N..×K×E
    return mx.sum(parts, axis=-2).astype(outputs.dtype)
    # [/task 6.1.4 add-up]


def route(
    logits: mx.array, k: int, normalized: bool, expert_scales: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """`select_experts` on any device; `expert_scales`, X float32, multiply the routing weights."""
    # [solution only]
    if kernels.computes_on_cpu():
        return kernels.topk_softmax(logits, k, normalized, expert_scales)
    # [/solution only]
    experts, routing_weights = select_experts(logits, k, normalized)
    if expert_scales is not None:
        routing_weights = routing_weights * expert_scales[experts]
    return experts, routing_weights


def weighted_sum(
    outputs: mx.array, routing_weights: mx.array, shared: mx.array | None = None
) -> mx.array:
    """`combine_experts` on any device, plus the shared expert's output, if any."""
    # [solution only]
    if kernels.computes_on_cpu():
        return kernels.weighted_sum(outputs, routing_weights, shared)
    # [/solution only]
    y = combine_experts(outputs, routing_weights)
    return y if shared is None else y + shared


class SparseMoE:
    """The router and experts of one layer.

    Args:
        layer: the checkpoint's layer: `gate` is the router; `switch_mlp` has the stacked matrices
            of all X experts, X×I×E or X×E×I each, for MLP size I; the optional `shared_expert`, an
            MLP, is applied to every token, scaled by σ(`shared_expert_gate`).
    """

    def __init__(self, config: MoEConfig, layer: Any, dtype: mx.Dtype):
        self.config = config
        self.gate = linear_from(layer.gate, dtype)
        self.experts = make_experts(layer.switch_mlp, dtype, config.activation)
        self.shared_expert: Mlp | None = None
        self.shared_expert_gate: Linear | None = None
        if config.shared_expert_intermediate_size is not None:
            self.shared_expert = Mlp(layer.shared_expert, dtype)
            self.shared_expert_gate = linear_from(layer.shared_expert_gate, dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """Computes each token's experts and their weighted sum: N..×E -> N..×E."""
        experts, routing_weights = self.route(x)
        outputs = self.experts(x, experts)
        shared = None
        if self.shared_expert is not None and self.shared_expert_gate is not None:
            shared = kernels.sigmoid_gate(self.shared_expert(x), self.shared_expert_gate(x))
        return weighted_sum(outputs, routing_weights, shared)

    def route(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Selects experts: N..×E -> (expert ids, N..×K uint32; routing weights, N..×K float32)."""
        return route(self.gate(x), self.config.top_k, self.config.norm_topk_prob)


class ParallelExperts:
    """Gemma 4's experts, in parallel with an MLP.

        y = RMSNorm(mlp output) + RMSNorm(Σ probability · scale · expert(RMSNorm(x)))

    The router has a separate RMSNorm of x; each expert's probability has a learned scale.

    Args:
        layer: the checkpoint's layer: `router`, `experts` and three norms.
    """

    def __init__(self, config: DecoderConfig, layer: Any, dtype: mx.Dtype):
        assert config.experts is not None
        self.top_k = config.experts.top_k
        self.eps = config.rms_norm_eps
        self.router_norm = layer.router.scale.astype(mx.float32) * config.hidden_size**-0.5
        self.gate = linear_from(layer.router.proj, dtype)
        self.expert_scales = layer.router.per_expert_scale.astype(mx.float32)
        self.experts = make_experts(layer.experts.switch_glu, dtype, config.experts.activation)
        self.expert_norm = layer.pre_feedforward_layernorm_2.weight.astype(dtype)
        self.mlp_output_norm = layer.post_feedforward_layernorm_1.weight.astype(dtype)
        self.output_norm = layer.post_feedforward_layernorm_2.weight.astype(dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """Computes the weighted sum over experts from x, the residual stream: 1×T×E -> 1×T×E."""
        logits = self.gate(kernels.rms_norm(x, self.router_norm, self.eps))
        experts, routing_weights = route(logits, self.top_k, True, self.expert_scales)
        outputs = self.experts(kernels.rms_norm(x, self.expert_norm, self.eps), experts)
        return weighted_sum(outputs, routing_weights)

    def combine(self, mlp_output: mx.array, total: mx.array) -> mx.array:
        """Computes y from the outputs of the MLP and the experts."""
        mlp_output = kernels.rms_norm(mlp_output, self.mlp_output_norm, self.eps)
        total = kernels.rms_norm(total, self.output_norm, self.eps)
        return kernels.scaled_sum(mlp_output, total, 1.0)
