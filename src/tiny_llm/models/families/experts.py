"""Mixture of experts: a router selects a few of many MLPs for each token.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

The matmuls are in `expert_matmul.py`. Selection and weighted sum are defined here in MLX
operations, used on a GPU; on a CPU, each is one operation of the extension.

Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer" (2017).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ... import kernels
from ...kernels.prepack import QUANTIZED_ARRAYS
from .config import MoEConfig
from .expert_matmul import PROJECTIONS, make_experts
from .linear import linear_from


def select_experts(logits: mx.array, k: int, normalized: bool) -> tuple[mx.array, mx.array]:
    """Routing: selects each token's experts and their shares.

    Args:
        logits: N..×X for X experts, in any dtype; compared in float32.
        k: number of experts per token, 1 to X.
        normalized: whether the k shares are divided by their sum, so that they add up to 1.

    Returns:
        (indices of the k likeliest experts, in descending order, N..×k uint32; their softmax
        probabilities over all X experts, normalized if `normalized`, N..×k float32).
    """
    # [task 5.1.1 choose]
    scores = logits.astype(mx.float32)
    experts = mx.argsort(-scores, axis=-1)[..., :k]
    shares = mx.take_along_axis(mx.softmax(scores, axis=-1, precise=True), experts, axis=-1)
    if normalized:
        shares = shares / mx.sum(shares, axis=-1, keepdims=True)
    return experts, shares
    # [/task 5.1.1 choose]


def combine_experts(outputs: mx.array, shares: mx.array) -> mx.array:
    """Weighted sum of a token's experts: Σ_k shares[…, k] · outputs[…, k, :].

    Args:
        outputs: N..×K×E, in any dtype; accumulated in float32.
        shares: N..×K float32.

    Returns:
        N..×E in the dtype of `outputs`, rounded once.
    """
    # [task 5.1.4 add-up]
    parts = outputs.astype(mx.float32) * shares[..., None]  # N..×K×E
    return mx.sum(parts, axis=-2).astype(outputs.dtype)
    # [/task 5.1.4 add-up]


class SparseMoE:
    """The router and experts of one layer.

    Args:
        config: number of experts and their selection.
        layer: the checkpoint's layer: `gate` is the router; `switch_mlp` has the stacked matrices
            of all experts, X×I×E or X×E×I each.
        dtype: dtype of the activations.
    """

    def __init__(self, config: MoEConfig, layer: Any, dtype: mx.Dtype):
        self.config = config
        self.router = linear_from(layer.gate, dtype)
        self.experts = make_experts(layer.switch_mlp, dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        experts, shares = self.choose(x)
        outputs = self.experts(x, experts)
        # [solution only]
        if kernels.computes_on_cpu():
            return kernels.weighted_sum(outputs, shares)
        # [/solution only]
        return combine_experts(outputs, shares)

    def choose(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Selects the experts of each token, likeliest first, and their shares.

        Args:
            x: N..×E.

        Returns:
            (N..×K uint32, N..×K float32).
        """
        logits, config = self.router(x), self.config  # N..×X
        # [solution only]
        if kernels.computes_on_cpu():
            return kernels.topk_softmax(logits, config.top_k, config.norm_topk_prob)
        # [/solution only]
        return select_experts(logits, config.top_k, config.norm_topk_prob)

    @property
    def nbytes(self) -> int:
        """Bytes read per token: the router's matrix and the selected experts'."""
        selected = self.experts.nbytes * self.config.top_k // self.config.num_experts
        return self.router.nbytes + selected


def stack_experts(weights: dict[str, mx.array], layers: Sequence[int], num_experts: int) -> None:
    """Stacks the matrices of single experts, the layout of MLX's checkpoints, in place.

    Args:
        weights: tensor name -> array; names such as `mlp.experts.3.up_proj.weight` are replaced.
        layers: indices of the layers with experts.
        num_experts: number of experts per layer.
    """
    for index in layers:
        mlp = f"model.layers.{index}.mlp"
        for name in PROJECTIONS:
            for part in QUANTIZED_ARRAYS:
                names = [f"{mlp}.experts.{e}.{name}.{part}" for e in range(num_experts)]
                if all(each in weights for each in names):
                    stacked = mx.stack([weights.pop(each) for each in names])
                    weights[f"{mlp}.switch_mlp.{name}.{part}"] = stacked
