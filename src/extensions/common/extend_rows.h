#pragma once

#include "mlx/array.h"

namespace tiny_llm_ext {

/// Appends zeroed rows to an array in place, by moving its memory pages to a larger buffer.
///
/// Copying a KV cache of gigabytes to grow it takes seconds, mostly page faults of the new buffer.
/// Moving pages (Linux's mremap) takes microseconds, and the new rows fault in when written.
/// x: evaluated; copied if it is shared or was not allocated here. num_rows: at least 0.
/// Returns false, with x unchanged, on other systems and if a GPU can access buffers.
bool extend_rows(mlx::core::array& x, int num_rows);

}  // namespace tiny_llm_ext
