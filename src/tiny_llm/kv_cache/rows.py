"""Row serialization: one page or state slot of all layers to and from bytes.

Row i of a list of arrays is element i of each array. Its bytes are concatenated in the arrays'
order. `PagedStorage.page_arrays` has one row per page, `StateStorage.arrays` one per state slot.
"""

import math
from collections.abc import Sequence

import mlx.core as mx


def row_bytes(arrays: Sequence[mx.array]) -> int:
    """Returns the size in bytes of one row across all arrays."""
    return sum(_row_bytes(array) for array in arrays)


def read_row(arrays: Sequence[mx.array], index: int) -> bytearray:
    """Returns a copy of row `index` of all arrays; evaluates the arrays."""
    row = bytearray(row_bytes(arrays))
    start = 0
    for array in arrays:
        size = _row_bytes(array)
        memory = memoryview(mx.view(array, mx.uint8)).cast("B")  # type: ignore[arg-type]
        row[start : start + size] = memory[index * size : (index + 1) * size]
        start += size
    return row


def write_rows(
    arrays: Sequence[mx.array], indices: Sequence[int], rows: Sequence[memoryview]
) -> None:
    """Overwrites rows of all arrays, in place, with bytes from `read_row`.

    Precondition: the arrays have no other references; otherwise MLX copies them.
    """
    for index, row in zip(indices, rows, strict=True):
        data = mx.array(row)  # type: ignore[arg-type]  # uint8
        start = 0
        for array in arrays:
            size = _row_bytes(array)
            array[index] = mx.view(data[start : start + size], array.dtype).reshape(array.shape[1:])
            start += size
    mx.eval(*arrays)


def _row_bytes(array: mx.array) -> int:
    return math.prod(array.shape[1:]) * array.dtype.size
