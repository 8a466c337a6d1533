// CPU kernels of sigmoid_gate on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct SigmoidGateJob {
    int64_t M, D;
    Format format;     // format of all arrays
    const void* x;     // M × D, rows x_stride elements apart
    const void* gate;  // M × D, or M × 1 if gate_step is 0; rows gate_stride elements apart
    void* out;         // M × D; may alias x
    int64_t x_stride, gate_stride;
    int64_t gate_step;  // element stride within a row of gate; 0: a gate per row
};

/// Reference kernel: computes rows first … last − 1. The vector kernel, in
/// fast/sigmoid_gate_simd.cpp, has the same interface.
void sigmoid_gate_reference(const SigmoidGateJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
