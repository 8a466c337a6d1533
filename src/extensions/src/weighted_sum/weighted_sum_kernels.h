// CPU kernels of weighted_sum on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct WeightedSumJob {
    int64_t N, K, E;
    Format format;         // format of x and out
    const void* x;         // N × K × E
    const float* weights;  // N × K
    const void* base;      // N × E, or null for zeros
    void* out;             // N × E
};

/// Reference kernel: computes rows first … last − 1 of out. The vector kernel, in
/// fast/weighted_sum_simd.cpp, gives the same bits.
void weighted_sum_reference(const WeightedSumJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
