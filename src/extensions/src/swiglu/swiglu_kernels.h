// CPU kernels of swiglu on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct SwigluJob {
    int64_t M, I;
    Format format;     // format of all arrays
    const void* gate;  // M × I, rows gate_stride elements apart
    const void* up;    // M × I, rows up_stride elements apart
    void* out;         // M × I; may alias gate or up
    int64_t gate_stride, up_stride;
};

/// Reference kernel: computes rows first … last − 1. The vector kernel, in fast/swiglu_simd.cpp,
/// has the same interface.
void swiglu_reference(const SwigluJob& job, int64_t first, int64_t last);
using SwigluKernel = void (*)(const SwigluJob& job, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
