// CPU kernels of gated_rms_norm on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct GatedRmsNormJob {
    int64_t M, D;  // number of rows; elements per row
    float eps;
    Format format, weight_format;  // format of z and out; format of weight
    const float* o;                // M × D, rows o_stride elements apart
    const void* z;                 // M × D, rows z_stride elements apart
    const void* weight;            // D
    void* out;                     // M × D; may alias z
    int64_t o_stride, z_stride;
};

/// Reference kernel: computes rows first … last − 1. gated_rms_norm in fast/gated_rms_norm_simd.cpp
/// has the same interface.
void gated_rms_norm_reference(const GatedRmsNormJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
