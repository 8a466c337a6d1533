// CPU kernels of causal_conv1d on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"
#include "common/state_slots.h"

namespace tiny_llm_ext {

constexpr int64_t MAX_CONV_WIDTH = 8;

/// Maximum channels per kernel call, so that their taps and inputs stay in the L1 cache.
constexpr int64_t CONV_CHANNELS = 256;

struct CausalConv1dJob {
    int64_t C, K;                  // channels, convolution width
    Format format, weight_format;  // format of x and states; format of weight
    const void* x;                 // T × C, rows x_stride elements apart
    const void* weight;            // C × K at the strides below
    void* states;                  // S × (K − 1) × C
    float* y;                      // T × C
    int64_t x_stride;
    int64_t weight_strides[2];
    StateSlots slots;
};

/// Reference kernel: computes channels first … last − 1 of a sequence, at most CONV_CHANNELS of
/// them. causal_conv1d in fast/causal_conv1d_simd.cpp has the same interface.
void causal_conv1d_reference(const CausalConv1dJob& job, int64_t sequence, int64_t first,
                             int64_t last);

}  // namespace tiny_llm_ext
