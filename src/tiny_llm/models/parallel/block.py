"""A layer of which each rank computes a part: what lies between two sums is recorded.

On one rank a whole decode step is one node of the graph (`kernels/recorded.py`). A sum over ranks
is MLX's own operation, which cannot be part of a recording, so a layer is two nodes here, attention
and the MLP. Each ends where a sum begins.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from ...kernels.recorded import Recorded
from ...kv_cache.placement import NUM_RAGGED_PLACES, LayerWriter, Places, Rotation
from ..families.decoder import Block
from .layers import Group, sum_over_ranks

Half = Callable[..., Any]


class SplitBlock:
    """A block whose two updates are summed over the ranks.

    Args:
        block: this rank's part.
        group: the ranks.
        record: whether the block can be recorded.

    Attributes:
        block: as given.
    """

    def __init__(self, block: Block, group: Group, record: bool):
        self.block = block
        self._group = group
        self._record = record
        self._halves: dict[int, tuple[Half, Half]] = {}  # by how many arrays the places are

    def __call__(
        self, x: mx.array, update: mx.array | None, rotation: Rotation, writer: LayerWriter
    ) -> tuple[mx.array, mx.array]:
        """As `Block`, with the updates that all ranks together have.

        A half of the block gives (x, part): x is the same on all ranks, and the update is the sum
        of all ranks' parts. `feed` takes x and attention's update.
        """
        places = writer.places.arrays
        attend, feed = self._halves_for(len(places))
        last = [] if update is None else [update]
        x, part, *writer.buffers = attend(x, *rotation, *places, *writer.buffers, *last)
        # [task 5.2.3 two-sums]
        x, part = feed(x, sum_over_ranks(part, self._group))
        return x, sum_over_ranks(part, self._group)
        # [/task 5.2.3 two-sums]

    def _halves_for(self, num_places: int) -> tuple[Half, Half]:
        """Both halves as functions of arrays, for plans of one kind."""
        if num_places not in self._halves:
            halves: tuple[Half, Half] = partial(self._attend, num_places), self.block.feed
            # [solution only]
            if self._record:
                at_once = num_places < NUM_RAGGED_PLACES  # as `PlacedLayers` does
                halves = Recorded(halves[0], at_once), Recorded(halves[1], at_once)
            # [/solution only]
            self._halves[num_places] = halves
        return self._halves[num_places]

    def _attend(self, num_places: int, x: mx.array, *rest: mx.array) -> tuple[mx.array, ...]:
        cos, sin, *arrays = rest
        places, buffers = Places(*arrays[:num_places]), arrays[num_places:]
        update = buffers.pop() if len(buffers) > 2 else None
        x, part = self.block.attend(x, update, (cos, sin), LayerWriter(buffers, 0, places))
        return x, part, *buffers
