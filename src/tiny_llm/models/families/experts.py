"""A mixture of experts: a router sends each token through a few of many MLPs.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

`expert_products.py` has the products. Probabilities and their sum are one node of the graph each.

Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer" (2017).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ... import kernels
from ...kernels.interleaved import PARTS
from .config import Experts
from .expert_products import PROJECTIONS, products_from
from .linear import linear_from


class ExpertMlps:
    """The experts of one layer, and their router.

    Args:
        config: how many there are, and how they are chosen.
        layer: of the checkpoint: `gate` is the router; `switch_mlp` has the matrices of all
            experts, X×I×E or X×E×I each.
        dtype: of the activations.
    """

    def __init__(self, config: Experts, layer: Any, dtype: mx.Dtype):
        self.config = config
        self.router = linear_from(layer.gate, dtype)
        self.products = products_from(layer.switch_mlp, dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        experts, shares = self.choose(x)
        return kernels.weighted_sum(self.products(x, experts), shares)

    def choose(self, x: mx.array) -> tuple[mx.array, mx.array]:
        """Which experts each token goes through, likeliest first, and with what share.

        Args:
            x: N..×E.

        Returns:
            (N..×K uint32, N..×K float32).
        """
        return kernels.topk_softmax(self.router(x), self.config.top_k, self.config.normalized)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices that a token goes through: the router's and the chosen experts'."""
        of_experts = self.products.nbytes * self.config.top_k // self.config.num_experts
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
            for part in PARTS:
                own = [f"{mlp}.experts.{e}.{name}.{part}" for e in range(num_experts)]
                if all(each in weights for each in own):
                    stacked = mx.stack([weights.pop(each) for each in own])
                    weights[f"{mlp}.switch_mlp.{name}.{part}"] = stacked
