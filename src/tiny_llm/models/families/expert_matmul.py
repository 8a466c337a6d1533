"""Matmuls for the selected experts, by device and weight format.

GroupedExperts     the extension's grouped matmul: 4 or 8 bits, on a CPU
SeparateExperts    one MLP per expert: other formats and float32, on a CPU
GatheredExperts    MLX's gathered matmul: on a GPU
"""

import copy
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import mlx.core as mx

from ... import kernels
from ...kernels.prepack import QUANTIZED_ARRAYS, row_major_layer
from ...quantize import QuantizedWeights
from .config import Activation
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
