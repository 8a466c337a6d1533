"""Heap trimming: returns the memory of freed arrays to the system.

Once an array of up to 32 MB has been freed, glibc allocates arrays of that size on the heap
(dynamic mmap threshold) and does not return free pages between live blocks.
"""

import ctypes


def trim_heap() -> None:
    """Returns free heap pages to the system (about 2 ms for the demo); a no-op without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
