// Launches of matmul*.metal.
#pragma once

#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext {

/// Shape of a product, and whether a and b are aligned to 16 bytes.
struct MatmulShape {
    int64_t M, O, I;
    int64_t a_stride, b_stride;  // row strides in elements
    bool aligned;
    Format format;
};

/// Buffers: a, b, out. If groups.z, the number of parts P, is above 1, out is replaced by float32
/// partial sums P×M×O, which split_k_sum_launch adds.
MetalLaunch matmul_launch(const MatmulShape& shape, MatmulVariant variant, int max_threads);

}  // namespace tiny_llm_ext
