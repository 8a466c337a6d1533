// Launch of cache_write.metal: one element per thread, heads along y.
#pragma once

#include "common/metal_launch.h"
#include "src/cache_write/cache_write_params.h"

namespace tiny_llm_ext {

/// Buffers: tokens B×H×L×D (strided), offsets B int32, cache B×H×C×D (cache_write.h defines the
/// sizes); elements of tokens and cache have item_size bytes.
MetalLaunch cache_write_launch(int B, const CacheWriteParams& params, int item_size,
                               int max_threads);

}  // namespace tiny_llm_ext
