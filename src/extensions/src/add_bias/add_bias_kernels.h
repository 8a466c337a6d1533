// CPU kernels of add_bias on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct AddBiasJob {
    int64_t M, O;      // rows and outputs of the linear layer
    Format format;     // format of all arrays
    const void* x;     // M × O, rows x_stride elements apart
    const void* bias;  // O
    void* out;         // M × O; may alias x
    int64_t x_stride;
};

/// Reference kernel: computes rows first … last − 1. add_bias in fast/add_bias_simd.cpp has the
/// same interface.
void add_bias_reference(const AddBiasJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
