"""Mixture of experts: a router selects a few of many MLPs for each token.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

`expert_matmul.py` has the matmuls. Routing and the weighted sum use MLX operations on a GPU, and
one operation of the extension each on a CPU.

Source: Shazeer et al., "Outrageously Large Neural Networks" (2017), arXiv 1701.06538.
"""

from typing import Any

import mlx.core as mx

from ... import kernels
from .config import DecoderConfig, MoEConfig
from .expert_matmul import make_experts
from .linear import Linear, Mlp, linear_from


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
