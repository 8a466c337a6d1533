// Launches of paged_cache_write.metal: one thread per element, with tokens along y; for 8-bit rows,
// one simdgroup per head and token.
#pragma once

#include "common/metal_launch.h"
#include "src/paged_cache_write/paged_cache_write_params.h"

namespace tiny_llm_ext {

/// Buffers: tokens B×H×L×D (strided), slots B×L int32, pages P×H×page_size×D; elements of item_size
/// bytes.
MetalLaunch paged_cache_write_launch(const PagedCacheWriteParams& params, int item_size,
                                     int max_threads);

/// Buffers: tokens B×H×L×D in `format` (strided), slots B×L int32, pages
/// P×H×page_size×row_width int8.
MetalLaunch paged_cache_write_int8_launch(const PagedCacheWriteParams& params, Format format);

}  // namespace tiny_llm_ext
