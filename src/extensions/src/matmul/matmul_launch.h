// How the kernels of matmul*.metal are started.
#pragma once

#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext {

/// The shape of a product, and whether a and b begin on a multiple of 16 bytes.
struct MatmulShape {
    int64_t M, O, I;
    int64_t a_stride, b_stride;  // numbers from one row to the next
    bool aligned;
    Format format;
};

/// Buffers: a, b, out; if groups.z is the number of parts, more than one, then instead of out the
/// parts in float32, P × M × O, which sum_parts_launch adds.
MetalLaunch matmul_launch(const MatmulShape& shape, MatmulVariant variant, int max_threads);

}  // namespace tiny_llm_ext
