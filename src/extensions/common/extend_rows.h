#pragma once

#include "mlx/array.h"

namespace tiny_llm_ext {

/// Appends zeroed rows to an array in place, by moving its memory pages to a larger buffer.
///
/// Copying a KV cache of gigabytes to grow it takes seconds, mostly page faults of the new buffer.
/// Moving pages (Linux's mremap) takes microseconds, and the new rows fault in when written.
/// x: evaluated and row-contiguous; copied if another array shares its memory or its pages cannot
///   be moved.
/// num_rows: number of new rows, at least 0.
/// Returns false, with x unchanged, for any other argument, on systems other than Linux, and on
/// machines with a GPU.
bool extend_rows(mlx::core::array& x, int num_rows);

}  // namespace tiny_llm_ext
