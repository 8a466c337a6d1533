#pragma once

#include "mlx/array.h"

namespace tiny_llm_ext {

/// Appends zeroed rows to an array in place, by moving its memory pages to a larger buffer.
///
/// Growing a KV cache of 3.6 GB took 9 s by copying, mostly page faults of the new buffer, and
/// takes 20 ms by moving pages (Linux's mremap). New rows use no physical memory until they are
/// written, except the first rows of an empty array, which start at a memory page.
///
/// x: evaluated and row-contiguous; copied if another array shares its memory or its pages cannot
///   be moved.
/// num_rows: number of new rows, at least 0.
/// Returns false, with x unchanged, for any other argument, on systems other than Linux, and on
/// machines with a GPU.
bool extend_rows(mlx::core::array& x, int num_rows);

}  // namespace tiny_llm_ext
