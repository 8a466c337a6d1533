// Activations of the kernels for prepacked weights. All lanes multiply the same element, so a row
// keeps its order and is only widened to float32.
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int VECTORS = PACK_ROWS / LANES;  // vectors of outputs computed together

// Widens row m of the activations to float32 and sums each of its groups.
//
// a: space for I elements. sums: space for I/group_size.
inline void widen(const QuantizedMatmulJob& job, int64_t m, float* a, float* sums) {
    // [task 4.3.2 widen]
    for (int64_t g = 0; g < job.I / job.group_size; g++) {
        Floats total = {};
        for (int64_t i = g * job.group_size; i < (g + 1) * job.group_size; i += LANES) {
            const Floats x = load(job.a, m * job.I + i, job.format);
            store(a, i, Format::float32, x);
            total += x;
        }
        sums[g] = sum(total);
    }
    // [/task 4.3.2 widen]
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
