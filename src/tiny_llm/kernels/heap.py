"""Memory of large arrays: heap trimming, growth without copies.

Once an array of up to 32 MB has been freed, glibc allocates arrays of that size on the heap
(dynamic mmap threshold) and does not return free pages between live blocks to the system.
"""

import ctypes

import mlx.core as mx

from . import extension, is_built


def trim_heap() -> None:
    """Returns free heap pages to the system (takes 2 ms); a no-op without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def extend_rows(x: mx.array, num_rows: int) -> mx.array:
    """Appends zeroed rows to an array, and evaluates it.

    On Linux CPUs, remaps memory pages instead of copying them if nothing else references the array,
    so growing a KV cache takes almost no time. `x` must not be used afterwards.
    """
    mx.eval(x)
    if not (is_built() and extension().extend_rows(x, num_rows)):
        x = mx.concatenate([x, mx.zeros((num_rows, *x.shape[1:]), x.dtype)])
        mx.eval(x)
    return x
