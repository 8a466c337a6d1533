"""A mixture of experts: a router sends each token through a few of many MLPs.

    probabilities = softmax(router · x), in float32
    y = Σ probability · expert(x), over the top k experts

On a CPU the tokens are grouped by expert, and each expert multiplies its own with the kernels that
an MLP has: a step reads the experts that were chosen and no others. Which those are must be known
before the products begin, so a step of such a model is not recorded. On a GPU nothing is waited
for: MLX's `gather_qmm` looks the experts up itself.

Source: Shazeer et al., "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts
Layer" (2017).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from ... import kernels
from .config import Experts
from .linear import linear_from
from .mlp import Mlp

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
PARTS = ("weight", "scales", "biases")

# From so many products on, a GPU's are sorted by expert: neighbours then read the same weights.
SORTED_FROM = 64


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
        self.stacked = layer.switch_mlp
        self.dtype = dtype
        self.experts: list[Mlp] = []
        if kernels.computes_on_cpu():
            self.experts = [_expert(layer.switch_mlp, e, dtype) for e in range(config.num_experts)]

    def __call__(self, x: mx.array) -> mx.array:
        """N..×E -> N..×E."""
        tokens = x.reshape(-1, x.shape[-1])  # T×E
        chosen, shares = self.choose(tokens)
        run = self._run_by_expert if self.experts else self._run_gathered
        each = run(tokens, chosen)  # T×k×E
        out = (each.astype(mx.float32) * shares[..., None]).sum(axis=1)
        return out.astype(x.dtype).reshape(x.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices that a token goes through: the router's and the chosen experts'."""
        layers = [self.stacked[name] for name in PROJECTIONS]
        all_experts = sum(layer[part].nbytes for layer in layers for part in PARTS if part in layer)
        return self.router.nbytes + all_experts * self.config.top_k // self.config.num_experts

    def choose(self, tokens: mx.array) -> tuple[mx.array, mx.array]:
        """Which experts each token goes through, in their order, and with what share.

        Args:
            tokens: T×E.

        Returns:
            (T×k integers, T×k float32).
        """
        probabilities = mx.softmax(self.router(tokens).astype(mx.float32), axis=-1)
        k = self.config.top_k
        chosen = mx.sort(mx.argsort(-probabilities, axis=-1)[:, :k], axis=-1)
        shares = mx.take_along_axis(probabilities, chosen, axis=-1)
        if self.config.normalized:
            shares = shares / shares.sum(axis=-1, keepdims=True)
        return chosen, shares

    def _run_by_expert(self, tokens: mx.array, chosen: mx.array) -> mx.array:
        """Each expert's tokens through it: T×E and T×k -> T×k×E."""
        T, k = chosen.shape
        if T == 0:
            return mx.zeros((0, k, tokens.shape[-1]), tokens.dtype)
        of_product: list[int] = chosen.flatten().tolist()  # type: ignore[assignment]
        order = sorted(range(T * k), key=of_product.__getitem__)
        outputs, first = [], 0
        while first < len(order):
            expert, last = of_product[order[first]], first
            while last < len(order) and of_product[order[last]] == expert:
                last += 1
            own = mx.array([product // k for product in order[first:last]])
            outputs.append(self.experts[expert](tokens[own]))
            first = last
        place = sorted(range(T * k), key=order.__getitem__)  # of each product in the outputs
        return mx.concatenate(outputs)[mx.array(place)].reshape(T, k, -1)

    def _run_gathered(self, tokens: mx.array, chosen: mx.array) -> mx.array:
        """The same by MLX, which looks the experts up itself."""
        T, k = chosen.shape
        products = chosen.flatten()  # T·k
        is_sorted = products.size >= SORTED_FROM
        order = mx.argsort(products) if is_sorted else mx.arange(products.size)
        x = tokens[order // k][:, None]  # T·k×1×E
        experts = products[order]
        gate, up = (
            _gathered(x, self.stacked[name], experts, is_sorted) for name in PROJECTIONS[:2]
        )
        out = _gathered(kernels.swiglu(gate, up), self.stacked.down_proj, experts, is_sorted)
        return out[mx.argsort(order), 0].reshape(T, k, -1)


def _gathered(x: mx.array, layer: Any, experts: mx.array, is_sorted: bool) -> mx.array:
    """N×1×I through the matrix of N experts: N×1×O."""
    if "scales" not in layer:
        weight = layer.weight.astype(x.dtype).swapaxes(-1, -2)
        return mx.gather_mm(x, weight, rhs_indices=experts, sorted_indices=is_sorted)
    product = mx.gather_qmm(
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
    )
    return product.astype(x.dtype)


def _expert(stacked: Any, index: int, dtype: mx.Dtype) -> Mlp:
    """One expert, whose matrices are views of the stacked ones."""
    return Mlp(_Part(**{name: _slice(stacked[name], index) for name in PROJECTIONS}), dtype)


def _slice(layer: Any, index: int) -> "_Part":
    arrays = {name: layer[name][index] for name in PARTS if name in layer}
    if "scales" not in layer:
        return _Part(**arrays)
    mode = getattr(layer, "mode", "affine")
    return _Part(**arrays, group_size=layer.group_size, bits=layer.bits, mode=mode)


class _Part(Module):
    """A layer, or a few by name."""

    def __init__(self, **parts: Any):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


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
