// CPU kernels of matmul on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct MatmulJob {
    int64_t M, O, I;  // rows of a, rows of b, and their length
    Format format;    // format of all arrays
    const void* a;    // M × I, rows a_stride elements apart
    const void* b;    // O × I, rows b_stride elements apart
    void* out;        // M × O
    int64_t a_stride, b_stride;
};

/// Range of one kernel call: rows from first_row and outputs from first_output on, up to but
/// excluding last_row and last_output.
struct MatmulTile {
    int64_t first_row, last_row, first_output, last_output;
};

/// Reference kernel. The vector kernel, in fast/matmul_simd.cpp, has the same interface.
void matmul_reference(const MatmulJob& job, const MatmulTile& tile);

}  // namespace tiny_llm_ext
