"""State storage: recurrent states of linear-attention layers, in slots.

A sequence has one state per layer, of constant size (`attention/gated_delta.py`). Like a page id, a
slot id refers to the same slot in every layer's arrays. Unlike keys and values, a state cannot be
trimmed to fewer tokens, so slots also hold the states at positions that a sequence may return to.
"""

import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import mlx.core as mx

from .. import kernels


@dataclass(frozen=True)
class StateShape:
    conv_state: tuple[int, int]  # (K−1)×C in `dtype`: last inputs, for K taps and C channels
    state: tuple[int, int, int]  # H_v×D_k×D_v float32: value heads, key and value size
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return (
            math.prod(self.conv_state) * self.dtype.size + math.prod(self.state) * mx.float32.size
        )


class StateStorage:
    """State slots of the linear-attention layers; a slot uses memory once it is written.

    Args:
        layers: indices of the model's linear-attention layers, in ascending order.

    Attributes:
        conv_states, states: an S×(K−1)×C and an S×H_v×D_k×D_v array per layer, for S slots (see
            `StateShape`). Written in place; do not keep references to the arrays.
        resident: slots with physical memory.

    Raises:
        ValueError: `num_slots` is below 1.
    """

    def __init__(self, layers: Sequence[int], num_slots: int, shape: StateShape):
        if num_slots < 1:
            raise ValueError(f"StateStorage: num_slots must be at least 1, got {num_slots}.")
        self.layers = tuple(layers)
        self.num_slots = num_slots
        self.conv_states = [
            kernels.reserve_zeros((num_slots, *shape.conv_state), shape.dtype) for _ in layers
        ]
        self.states = [kernels.reserve_zeros((num_slots, *shape.state), mx.float32) for _ in layers]
        self.resident: set[int] = set()
        self._slot_bytes = len(layers) * shape.nbytes

    @property
    def arrays(self) -> list[mx.array]:
        """Convolution states of all layers, then recurrent states, indexed by slot."""
        return [*self.conv_states, *self.states]

    @property
    def nbytes(self) -> int:
        """Bytes of physical memory of all layers' slots."""
        return len(self.resident) * self._slot_bytes


def release_rows(arrays: Sequence[mx.array], resident: set[int], free: Collection[int]) -> None:
    """Returns the physical memory of `free` rows and removes them from `resident`.

    A no-op on macOS and on a GPU, where the memory stays reserved.
    """
    if sys.platform == "linux" and kernels.computes_on_cpu():
        rows = sorted(resident.intersection(free))
        for array in arrays:
            kernels.release_rows(array, rows)
        resident.difference_update(rows)
