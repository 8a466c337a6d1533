// CPU kernels of qk_norm_rope on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct QkNormRopeJob {
    int64_t B, L, H, D;
    int64_t W;  // rotated pairs per head
    float eps;
    Format format;       // format of x, weight and out
    const void* x;       // B × L × H × D, at the strides below; D is contiguous
    const void* weight;  // D; null to skip the norm
    const float* cos;    // B × L × W, or L × W for all b if angle_stride is 0
    const float* sin;    // as cos
    void* out;           // B × H × L × D
    int64_t x_strides[3];
    int64_t angle_stride;  // stride of a sequence in cos and sin, in elements
};

/// Reference kernel: computes all heads of tokens first … last − 1, of B·L tokens. The vector
/// kernel, in fast/qk_norm_rope_simd.cpp, has the same interface.
void qk_norm_rope_reference(const QkNormRopeJob& job, int64_t first, int64_t last);
using QkNormRopeKernel = void (*)(const QkNormRopeJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
