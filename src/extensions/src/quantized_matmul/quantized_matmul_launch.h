// Launches of quantized_matmul*.metal.
#pragma once

#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext {

struct QuantizedMatmulShape {
    int64_t M, O, I;
    int group_size, bits;
    Format format, scale_format;  // format of a and out; format of scales and biases
};

/// Fastest variant for a shape; `readable` if a and the scales differ in dtype, because no known
/// checkpoint needs a fast kernel for that.
MatmulVariant choose_quantized_matmul_variant(const QuantizedMatmulShape& shape);

/// Buffers: scales, biases, a, b, out; a and b are aligned to 16 bytes. With split-K, groups.z is
/// the number of parts P, and the last buffer is P×M×O float32 partial sums instead, which
/// split_k_sum_launch adds. Throws std::invalid_argument for mixed dtypes in a variant other than
/// `readable`.
MetalLaunch quantized_matmul_launch(const QuantizedMatmulShape& shape, MatmulVariant variant,
                                    int max_threads);

}  // namespace tiny_llm_ext
