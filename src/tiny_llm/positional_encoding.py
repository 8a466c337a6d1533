"""Rotary positional encoding: the position of a token turns its queries and keys.

The score of a query and a key then depends on the distance between them alone.
"""

import functools
import math
from collections.abc import Sequence

import mlx.core as mx


class RoPE:
    """Rotates pairs of a head's features by an angle proportional to the token's position.

    Pair i of the token at position p turns by p · base^(−2i/D). The first pairs turn fast and
    tell neighbours apart; the last turn slowly and tell far from near.

    Two layouts of pairs exist, and a model works only with the one it was trained with.
    Traditional: neighbours (x[0], x[1]), (x[2], x[3]), … Otherwise, as Qwen3: halves
    (x[i], x[i + D/2]).

    The cosines and sines are computed for the positions asked for. A table for all positions
    would be read from memory at every step, and 32,768 positions take 16 MB.

    Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021).

    Args:
        dims: D, the head size; even.
        seq_len: how many positions there are; a position beyond is refused.
        base: θ; larger turns slower and suits longer contexts.
        traditional: the layout of the pairs.

    Raises:
        ValueError: `dims` is odd.
    """

    def __init__(
        self, dims: int, seq_len: int, base: int | float = 10000, traditional: bool = False
    ):
        if dims % 2 != 0:
            raise ValueError(f"RoPE: dims is {dims}; features turn in pairs, so it must be even.")
        self.dims = dims
        self.seq_len = seq_len
        self.base = base
        self.traditional = traditional

    def __call__(self, x: mx.array, offset: slice | Sequence[slice] | None = None) -> mx.array:
        """Rotates `x` as tokens at the positions of `offset`.

        Args:
            x: B×L×H×D.
            offset: which positions the L tokens have: None for 0 … L − 1, a slice of L positions
                for the whole batch, or a list of B such slices, one for each sequence.

        Returns:
            B×L×H×D, dtype of `x`; the rotation is computed in float32.

        Raises:
            ValueError: a slice that is not L positions long or passes `seq_len`; a list that is
                not B long.
        """
        B, L, _, D = x.shape
        if self.dims != D:
            raise ValueError(f"RoPE: x has head size {D}, this RoPE was made for {self.dims}.")
        cos, sin = self.cos_sin(offset, B, L)
        cos, sin = cos[:, :, None, :], sin[:, :, None, :]  # the same for every head

        rotate = _rotate_interleaved if self.traditional else _rotate_halves
        return rotate(x.astype(mx.float32), cos, sin).astype(x.dtype)

    def cos_sin(
        self, offset: slice | Sequence[slice] | None, B: int, L: int
    ) -> tuple[mx.array, mx.array]:
        """The cosine and sine of every pair's angle at the positions of `offset`.

        They depend on the positions alone: all heads and all layers of a step may share them.

        Args:
            offset: as in `__call__`.
            B: how many sequences.
            L: how many tokens each has.

        Returns:
            cos and sin, both (1 or B)×L×D/2 float32: 1 if all sequences have the same positions.

        Raises:
            ValueError: as in `__call__`.
        """
        # [task 1.2.1 positions]
        positions = [list(range(start, start + L)) for start in self._starts(offset, B, L)]
        return self.cos_sin_at(mx.array(positions, dtype=mx.int32))
        # [/task 1.2.1 positions]

    def cos_sin_at(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """`cos_sin` for positions in any order: N.. int32 -> cos and sin, both N..×D/2 float32.

        The positions are not checked, because that would compute them: the caller must know that
        the model has them.
        """
        # [task 1.2.1 angles]
        angle = positions.astype(mx.float32)[..., None] * self.inv_freq
        return mx.cos(angle), mx.sin(angle)
        # [/task 1.2.1 angles]

    @functools.cached_property
    def inv_freq(self) -> mx.array:
        """How far each pair turns from one position to the next, in radians: D/2 float32."""
        # [task 1.2.1 frequency]
        # In float32 p·θ has an error of about 1e-7·p radians whatever the formula. Powers are
        # written as exp(−i·log θ/…) because then the rounding is that of `mx.fast.rope`.
        pair = mx.arange(self.dims // 2, dtype=mx.float32)
        inv_freq = mx.exp(-pair * (math.log(self.base) / (self.dims // 2)))
        mx.eval(inv_freq)  # now: it is the same for every step
        return inv_freq
        # [/task 1.2.1 frequency]

    def _starts(self, offset: slice | Sequence[slice] | None, B: int, L: int) -> list[int]:
        """The first position of the whole batch (one number), or of each sequence (B numbers)."""
        if offset is None:
            offset = slice(0, L)
        if isinstance(offset, slice):
            return [self._start(offset, L)]
        if len(offset) != B:
            raise ValueError(f"RoPE: {len(offset)} offsets were given for a batch of {B}.")
        # [task 2.6.1 offsets]
        return [self._start(positions, L) for positions in offset]
        # [/task 2.6.1 offsets]

    def _start(self, positions: slice, L: int) -> int:
        """The first of L positions, all of which this RoPE has."""
        start, stop = positions.start or 0, positions.stop
        if stop is None or stop - start != L or positions.step not in (None, 1):
            raise ValueError(f"RoPE: offset {positions} does not name {L} consecutive positions.")
        if start < 0 or stop > self.seq_len:
            raise ValueError(
                f"RoPE: positions {start} … {stop - 1} are outside 0 … {self.seq_len - 1}, "
                "the positions this model has."
            )
        return start


def _rotate_interleaved(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Turns neighbours: the pairs (x[0], x[1]), (x[2], x[3]) and so on.

    Args:
        x: B×L×H×D.
        cos, sin: of each pair's angle, broadcastable to B×L×H×D/2.

    Returns:
        B×L×H×D.
    """
    # [task 1.2.1 neighbours]
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return mx.stack([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1).reshape(x.shape)
    # [/task 1.2.1 neighbours]


def _rotate_halves(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Turns halves: the pairs (x[i], x[i + D/2]). Shapes: see `_rotate_interleaved`."""
    # [task 1.2.2 halves]
    half = x.shape[-1] // 2
    x1, x2 = x[..., :half], x[..., half:]
    return mx.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=-1)
    # [/task 1.2.2 halves]
