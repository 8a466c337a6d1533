"""Quantized weights in the order in which the CPU's kernels want to read them.

The kernels for AVX-512 and AMX multiply a word of sixteen outputs at once, or of a few times as
many. In MLX's layout those words are at as many places of memory, a row apart; *interleaved*, rows
are stored word by word, and what is multiplied together lies together. Nothing else changes: not a
bit of a result, not a byte of memory. An array says by its shape which it is: rows are O×W,
interleaved (O/R)×W×R, where R is how many rows the kernels want together.

Loading does it in the extension, with all threads and into pages of 2 MB; `interleave` says in one
line of MLX what comes out.
"""

from typing import Any

import mlx.core as mx

from .. import kernels

LINE = 64  # bytes
PARTS = ("weight", "scales", "biases")


def interleave(matrix: mx.array, rows: int) -> mx.array:
    """O×W -> (O/R)×W×R, for words as for scales and biases.

    Args:
        matrix: O×W.
        rows: R, how many go together: `kernels.interleaved_rows()`.

    Raises:
        ValueError: O is no multiple of R.
    """
    O, W = matrix.shape
    if O % rows != 0:
        raise ValueError(f"interleave: expected a multiple of {rows} rows, got {O}.")
    return mx.contiguous(matrix.reshape(O // rows, rows, W).swapaxes(1, 2))


class InterleavedMemory:
    """One piece of memory, in large pages, for a model's quantized layers that our kernels read.

    They can be looked up and multiplied by the extension afterwards, and by nothing else. Others
    stay as they are, and so does everything where the kernels want rows.

    Args:
        model: an `mlx.nn` module; its weights may still have to be read from a file.
    """

    def __init__(self, model: Any):
        self._rows = kernels.interleaved_rows()
        arrays = [getattr(layer, name) for layer in self._readable_layers(model) for name in PARTS]
        self._memory = kernels.extension().large_pages(sum(map(_room, arrays))) if arrays else None
        self._used = 0

    def interleave_layers(self, part: Any) -> None:
        """Moves the layers of a part of the model here, each part once.

        One array after the other is computed: only one is in memory twice.
        """
        for layer in self._readable_layers(part):
            for name in PARTS:
                matrix = getattr(layer, name)
                place = self._rows, self._memory, self._used
                setattr(layer, name, kernels.extension().interleave(matrix, *place))
                self._used += _room(matrix)

    def _readable_layers(self, module: Any) -> list[Any]:
        if self._rows == 0:
            return []
        return [
            layer
            for layer in module.modules()
            if "scales" in layer
            and getattr(layer, "mode", "affine") == "affine"
            and layer.weight.shape[0] % self._rows == 0
        ]


def _room(array: mx.array) -> int:
    """How many bytes an array takes, in whole cache lines."""
    return -(-array.nbytes // LINE) * LINE
