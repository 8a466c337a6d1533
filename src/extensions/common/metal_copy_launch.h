// Launch of the GPU copy from any strides to row-major order.
#pragma once

#include <cstdint>
#include <vector>

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Launch that copies an array of any strides, with elements of 1, 2, 4 or 8 bytes, to row-major
/// order. Buffers: source, copy.
///
/// Adjacent dimensions are merged where their strides allow it. The last dimension is then a row;
/// the others index the rows. Throws std::invalid_argument for more than COPY_MAX_DIMS such
/// dimensions, or for more than 2^31 − 1 rows.
MetalLaunch copy_launch(const std::vector<int>& shape, const std::vector<int64_t>& strides,
                        int item_size, int max_threads);

}  // namespace tiny_llm_ext
