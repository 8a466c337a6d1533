// Launch of the GPU copy from any strides to row-major order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Launch that copies an array of any strides, with elements of 1, 2, 4 or 8 bytes, to row-major
/// order.
/// Buffers: source, copy. Throws std::invalid_argument for more than COPY_MAX_DIMS dimensions
/// besides the last, after merging dimensions that are contiguous with each other, and for 2^31 or
/// more rows.
MetalLaunch copy_launch(const std::vector<int>& shape, const std::vector<int64_t>& strides,
                        int item_size, int max_threads);

}  // namespace tiny_llm_ext
