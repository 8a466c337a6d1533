// Launches of matmul's Metal kernels.
#pragma once

#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext {

/// Shapes and layout of a matmul's arrays.
struct MatmulShape {
    int64_t M, O, I;             // rows of a, rows of b, and their length
    int64_t a_stride, b_stride;  // row strides in elements
    bool aligned;                // whether a and b are aligned to 16 bytes
    Format format;
};

/// Buffers: a, b, out. With split-K, groups.z is the number of parts P, and the last buffer is
/// P×M×O float32 partial sums instead, which split_k_sum_launch adds.
MetalLaunch matmul_launch(const MatmulShape& shape, MatmulVariant variant, int max_threads);

}  // namespace tiny_llm_ext
