"""Quantized weights in the order in which the CPU's kernels want to read them.

The kernels for AVX-512 and AMX multiply a word of sixteen outputs at once. In MLX's layout those
words are at sixteen places of memory, a row apart; *interleaved*, sixteen rows are stored word by
word, and what is multiplied together lies together. Nothing else changes: not a bit of a result,
not a byte of memory. An array says by its shape which it is: rows are O×W, interleaved
(O/16)×W×16.
"""

from typing import Any

import mlx.core as mx

from . import kernels

ROWS = 16


def interleave(matrix: mx.array) -> mx.array:
    """O×W -> (O/16)×W×16, for words as for scales and biases.

    Raises:
        ValueError: O is no multiple of 16.
    """
    O, W = matrix.shape
    if O % ROWS != 0:
        raise ValueError(f"interleave: expected a multiple of {ROWS} rows, got {O}.")
    return mx.contiguous(matrix.reshape(O // ROWS, ROWS, W).swapaxes(1, 2))


def interleave_layers(part: Any) -> None:
    """Interleaves the quantized layers of an `mlx.nn` module that our kernels read.

    They can be looked up and multiplied by the extension afterwards, and by nothing else. Others
    stay as they are, and so does everything where the kernels want rows. One array after the other
    is computed: of weights that are still to be read from a file, only one is in memory twice.
    """
    if not kernels.reads_interleaved():
        return
    for layer in part.modules():
        if (
            "scales" in layer
            and getattr(layer, "mode", "affine") == "affine"
            and layer.weight.shape[0] % ROWS == 0
        ):
            for name in ("weight", "scales", "biases"):
                setattr(layer, name, interleave(getattr(layer, name)))
                mx.eval(getattr(layer, name))
