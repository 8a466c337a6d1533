// CPU kernels of matmul on plain memory.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct MatmulJob {
    int64_t M, O, I;
    Format format;  // of all arrays
    const void* a;  // M × I, rows a_stride elements apart
    const void* b;  // O × I, rows b_stride elements apart
    void* out;      // M × O
    int64_t a_stride, b_stride;
};

/// One kernel call: rows first_row … last_row − 1 of these outputs.
struct MatmulTile {
    int64_t first_row, last_row, first_output, last_output;
};

/// The reference. Same interface: matmul in fast/matmul_simd.cpp.
void matmul_reference(const MatmulJob& job, const MatmulTile& tile);

}  // namespace tiny_llm_ext
