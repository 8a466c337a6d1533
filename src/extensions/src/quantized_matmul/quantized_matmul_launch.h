// How the kernels of quantized_matmul*.metal are started.
#pragma once

#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext {

struct QuantizedMatmulShape {
    int64_t M, O, I;
    int group_size, bits;
    Format format, scale_format;  // of a and out; of scales and biases
};

/// What is fast for a shape; `readable` if a and the scales are of different dtypes, as no
/// checkpoint has them.
MatmulVariant choose_quantized_matmul_variant(const QuantizedMatmulShape& shape);

/// Buffers: scales, biases, a, b, out, of which a and b begin on a multiple of 16 bytes; if
/// groups.z is the number of parts, more than one, then instead of out the parts in float32, P × M
/// × O, which sum_parts_launch adds. Throws std::invalid_argument for different dtypes in a variant
/// other than `readable`.
MetalLaunch quantized_matmul_launch(const QuantizedMatmulShape& shape, MatmulVariant variant,
                                    int max_threads);

}  // namespace tiny_llm_ext
