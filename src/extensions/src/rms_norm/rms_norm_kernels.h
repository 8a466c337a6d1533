// CPU kernels of rms_norm on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct RmsNormJob {
    int64_t M, D;
    float eps;
    Format format;       // format of all arrays
    const void* x;       // M × D, rows x_stride elements apart
    const void* y;       // M × D, rows y_stride elements apart; null: no addition
    const void* weight;  // D
    void* sum;           // M × D, null if y is null; may alias x
    void* out;           // M × D; may alias y, or x if y is null
    int64_t x_stride, y_stride;
};

/// Reference kernel: computes rows first … last − 1. The vector kernel, in fast/rms_norm_simd.cpp,
/// has the same interface.
void rms_norm_reference(const RmsNormJob& job, int64_t first, int64_t last);
using RmsNormKernel = void (*)(const RmsNormJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
