// CPU kernels of qk_norm_rope on raw pointers.
#pragma once

#include <stdint.h>

#include "common/declare_simd.h"
#include "common/half.h"
#include "src/qk_norm_rope/qk_norm_rope_params.h"

namespace tiny_llm_ext {

struct QkNormRopeJob {
    QkNormRopeParams sizes;
    Format format, weight_format;  // format of x and out; format of weight
    const void* x;                 // B × L × H × D, at sizes.x_strides; D is contiguous
    const void* weight;            // D; null to skip the norm
    const float* cos;              // B × L × W, or L × W for all b if sizes.angle_stride is 0
    const float* sin;              // as cos
    void* out;                     // B × H × L × D
};

/// Computes all heads of tokens first … last − 1, of B·L tokens.
using QkNormRopeKernel = void (*)(const QkNormRopeJob& job, int64_t first, int64_t last);

/// Reference kernel, and the vector kernels.
void qk_norm_rope_reference(const QkNormRopeJob& job, int64_t first, int64_t last);
TINY_LLM_DECLARE_SIMD(void qk_norm_rope(const QkNormRopeJob& job, int64_t first, int64_t last);)

/// Addresses of one head's elements, W angles and output.
struct QkNormRopeHead {
    const void* x;
    const float *cos, *sin;
    void* out;
};

namespace {  // internal linkage: the linker must not merge copies from different files

[[maybe_unused]] inline QkNormRopeHead head_of(const QkNormRopeJob& job, int64_t token, int64_t h) {
    const QkNormRopeParams& p = job.sizes;
    const int64_t size = job.format == Format::float32 ? 4 : 2;
    const int64_t b = token / p.L, l = token % p.L;
    const int64_t x = b * p.x_strides[0] + l * p.x_strides[1] + h * p.x_strides[2];
    const int64_t angles = b * p.angle_stride + l * p.W;
    const int64_t out = ((b * p.H + h) * p.L + l) * p.D;
    return {static_cast<const char*>(job.x) + x * size, job.cos + angles, job.sin + angles,
            static_cast<char*>(job.out) + out * size};
}

}  // namespace

}  // namespace tiny_llm_ext
