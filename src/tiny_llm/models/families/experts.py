"""A mixture of experts: a router sends each token through a few of many MLPs.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

`expert_matmul.py` has the products. The choice and the sum are defined here, in MLX's operations.
A GPU runs them so; on a CPU each of the two is one operation of the extension.

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
    """The router's choice: which experts each token goes through, and with what shares.

    Args:
        logits: N..×X, of X experts, in any dtype; they are compared in float32.
        k: how many experts a token goes through, 1 to X.
        normalized: whether the k shares are divided by their sum, so that they add up to 1.

    Returns:
        (the numbers of the k likeliest experts, likeliest first, N..×k uint32; the softmax of each
        over all X experts, normalized if asked for, N..×k float32).
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
    """What a token's experts say together: Σ_k shares[…, k] · outputs[…, k, :].

    Args:
        outputs: N..×K×E, in any dtype; they are multiplied and added in float32.
        shares: N..×K float32.

    Returns:
        N..×E in the dtype of `outputs`, rounded once.
    """
    # [task 5.1.4 add-up]
    parts = outputs.astype(mx.float32) * shares[..., None]  # N..×K×E
    return mx.sum(parts, axis=-2).astype(outputs.dtype)
    # [/task 5.1.4 add-up]


class SparseMoE:
    """The experts of one layer, and their router.

    Args:
        config: how many there are, and how they are chosen.
        layer: of the checkpoint: `gate` is the router; `switch_mlp` has the matrices of all
            experts, X×I×E or X×E×I each.
        dtype: of the activations.
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
        """Which experts each token goes through, likeliest first, and with what share.

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
        """Bytes of the matrices that a token goes through: the router's and the chosen experts'."""
        of_experts = self.experts.nbytes * self.config.top_k // self.config.num_experts
        return self.router.nbytes + of_experts


def stack_experts(weights: dict[str, mx.array], layers: Sequence[int], num_experts: int) -> None:
    """Puts the matrices of a checkpoint's single experts together, as MLX's checkpoints have them.

    Args:
        weights: all tensors by name; `mlp.experts.3.up_proj.weight` and its like are replaced.
        layers: which layers have experts.
        num_experts: how many each has.
    """
    for index in layers:
        mlp = f"model.layers.{index}.mlp"
        for name in PROJECTIONS:
            for part in QUANTIZED_ARRAYS:
                own = [f"{mlp}.experts.{e}.{name}.{part}" for e in range(num_experts)]
                if all(each in weights for each in own):
                    stacked = mx.stack([weights.pop(each) for each in own])
                    weights[f"{mlp}.switch_mlp.{name}.{part}"] = stacked
