"""Rotary positional encoding (RoPE): rotates queries and keys by position.

The score of a query and a key then depends on their distance, not on absolute positions.
"""

import functools
import math
from collections.abc import Sequence

import mlx.core as mx


class RoPE:
    """Rotates pairs of a head's features by angles proportional to the position.

    Pair i of the token at position p rotates by p · base^(−2i/D). The first pairs rotate fast and
    distinguish adjacent tokens; the last rotate slowly and distinguish near from distant tokens.

    Cosines and sines are computed for the requested positions only. A table for all of 32,768
    positions would take 16 MB for D = 128.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Args:
        dims: D, the head size; even.
        seq_len: number of positions; positions from `seq_len` on are rejected.
        base: base of the angles; a larger base rotates more slowly, for longer contexts.
        traditional: pair layout that the model was trained with. True: adjacent features
            (x[0], x[1]), (x[2], x[3]), …; False, as in Qwen3: halves (x[i], x[i + D/2]).

    Raises:
        ValueError: `dims` is odd.
    """

    def __init__(
        self, dims: int, seq_len: int, base: int | float = 10000, traditional: bool = False
    ):
        if dims % 2 != 0:
            raise ValueError(f"RoPE: dims must be even, got {dims}; features rotate in pairs.")
        self.dims = dims
        self.seq_len = seq_len
        self.base = base
        self.traditional = traditional

    def __call__(self, x: mx.array, offset: slice | Sequence[slice] | None = None) -> mx.array:
        """Rotates `x` according to its tokens' positions, computed in float32.

        Args:
            x: B×L×H×D, shape and dtype of the result.
            offset: positions of the L tokens: None for 0 … L − 1, one slice of L positions for all
                sequences, or a list of B slices, one per sequence.

        Raises:
            ValueError: the head size of `x` is not `dims`, a slice does not span L positions or
                exceeds `seq_len`, or the list does not have B slices.
        """
        B, L, _, D = x.shape
        if self.dims != D:
            raise ValueError(f"RoPE: x must have head size {self.dims}, got {D}.")
        cos, sin = self.cos_sin(offset, B, L)
        cos, sin = cos[:, :, None, :], sin[:, :, None, :]  # the same for every head

        rotate = _rotate_interleaved if self.traditional else _rotate_halves
        return rotate(x.astype(mx.float32), cos, sin).astype(x.dtype)

    def cos_sin(
        self, offset: slice | Sequence[slice] | None, B: int, L: int
    ) -> tuple[mx.array, mx.array]:
        """Computes the cosine and sine of every pair's angle.

        They depend only on the positions, so all heads and layers of a step can share them.

        Args:
            offset: positions of the L tokens of B sequences; for format and errors, see `__call__`.

        Returns:
            cos and sin, both (1 or B)×L×D/2 float32: 1 if all sequences have the same positions.
        """
        # [task 1.2.1 positions]
        positions = [list(range(start, start + L)) for start in self._starts(offset, B, L)]
        return self.cos_sin_at(mx.array(positions, dtype=mx.int32))
        # [/task 1.2.1 positions]

    def cos_sin_at(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """Like `cos_sin`, for any positions: N.. int32 -> cos, sin N..×D/2 float32.

        Precondition: positions are below `seq_len`. Checking it here would evaluate the array.
        """
        # [task 1.2.1 angles]
        angle = positions.astype(mx.float32)[..., None] * self.inv_freq
        return mx.cos(angle), mx.sin(angle)
        # [/task 1.2.1 angles]

    @functools.cached_property
    def inv_freq(self) -> mx.array:
        """Each pair's rotation per position, in radians: D/2 float32."""
        # [task 1.2.1 frequency]
        # In float32, an angle at position p has an error of about 1e-7·p radians, whatever the
        # formula. Powers are computed with `exp` to match the rounding of `mx.fast.rope`.
        pair = mx.arange(self.dims // 2, dtype=mx.float32)
        inv_freq = mx.exp(-pair * (math.log(self.base) / (self.dims // 2)))
        mx.eval(inv_freq)  # evaluated once, because it is the same in every step
        return inv_freq
        # [/task 1.2.1 frequency]

    def _starts(self, offset: slice | Sequence[slice] | None, B: int, L: int) -> list[int]:
        """Returns the first position: one for all sequences, or one per sequence."""
        if offset is None:
            offset = slice(0, L)
        if isinstance(offset, slice):
            return [self._start(offset, L)]
        if len(offset) != B:
            raise ValueError(f"RoPE: expected {B} offsets, one per sequence, got {len(offset)}.")
        # [task 2.6.1 offsets]
        return [self._start(positions, L) for positions in offset]
        # [/task 2.6.1 offsets]

    def _start(self, positions: slice, L: int) -> int:
        """Returns the start of a slice of L positions, which it validates."""
        start, stop = positions.start or 0, positions.stop
        if stop is None or stop - start != L or positions.step not in (None, 1):
            raise ValueError(f"RoPE: offset must be {L} consecutive positions, got {positions}.")
        if start < 0 or stop > self.seq_len:
            raise ValueError(
                f"RoPE: positions must be from 0 to {self.seq_len - 1}, the model's context, got "
                f"{start} to {stop - 1}."
            )
        return start


def _rotate_interleaved(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Rotates adjacent pairs of x (B×L×H×D): (x[0], x[1]), (x[2], x[3]), ….

    `cos` and `sin` of each pair's angle are broadcastable to B×L×H×D/2.
    """
    # [task 1.2.1 neighbors]
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return mx.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1).reshape(x.shape)
    # [/task 1.2.1 neighbors]


def _rotate_halves(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Rotates the pairs (x[i], x[i + D/2]). Shapes: see `_rotate_interleaved`."""
    # [task 1.2.2 halves]
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    # [/task 1.2.2 halves]
