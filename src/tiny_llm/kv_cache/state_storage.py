"""State storage: recurrent states of linear-attention layers, in slots.

A sequence has one state per layer, of constant size (`attention/gated_delta.py`). Like a page id, a
slot id refers to the same slot in every layer's arrays. Unlike keys and values, a state cannot be
trimmed to fewer tokens, so slots also hold the states at positions that a sequence may return to.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..kernels.heap import extend_rows
from .page_pool import compact_pages

GROWTH_SLOTS = 4  # minimum number of slots allocated at once


@dataclass(frozen=True)
class StateShape:
    """Shape of one layer's state in a slot."""

    conv_state: tuple[int, int]  # (K−1)×C in `dtype`: last inputs, for K taps and C channels
    state: tuple[int, int, int]  # H_v×D_k×D_v float32: value heads, key and value size
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Size of one layer's slot in bytes."""
        return (
            math.prod(self.conv_state) * self.dtype.size + math.prod(self.state) * mx.float32.size
        )


class StateStorage:
    """State slots of the linear-attention layers, allocated on demand.

    Writing to a slot allocates it and all slots with lower ids; only `compact` releases memory.

    Args:
        layers: indices of the model's linear-attention layers, in ascending order.
        num_slots: maximum number of slots.

    Attributes:
        conv_states, states: an S×(K−1)×C and an S×H_v×D_k×D_v array per layer, for S allocated
            slots (see `StateShape`). Written in place; do not keep references to the arrays.

    Raises:
        ValueError: `num_slots` is below 1.
    """

    def __init__(self, layers: Sequence[int], num_slots: int, shape: StateShape):
        if num_slots < 1:
            raise ValueError(f"StateStorage: num_slots must be at least 1, got {num_slots}.")
        self.layers = tuple(layers)
        self.num_slots = num_slots
        self.conv_states = [mx.zeros((0, *shape.conv_state), shape.dtype) for _ in layers]
        self.states = [mx.zeros((0, *shape.state), mx.float32) for _ in layers]

    @property
    def arrays(self) -> list[mx.array]:
        """Convolution states of all layers, then recurrent states, indexed by slot."""
        return [*self.conv_states, *self.states]

    @property
    def nbytes(self) -> int:
        """Allocated bytes of all layers' slots."""
        return sum(array.nbytes for array in self.arrays)

    def compact(self, slots: Sequence[int]) -> None:
        """Renumbers ascending slot ids to 0, 1, 2, …; releases all other slots."""
        for arrays in (self.conv_states, self.states):
            for i in range(len(arrays)):
                arrays[i] = compact_pages(arrays[i], slots)
                mx.eval(arrays[i])

    def ensure_capacity(self, num_slots: int) -> None:
        """Allocates memory for the first `num_slots` slots, up to the limit."""
        existing = len(self.states[-1])
        if existing >= min(num_slots, self.num_slots):
            return
        growth = max(num_slots - existing, existing // 2, GROWTH_SLOTS)
        capacity = min(existing + growth, self.num_slots)
        for arrays in (self.conv_states, self.states):
            for i in range(len(arrays)):
                arrays[i] = extend_rows(arrays[i], capacity - existing)
