// Prepared activations of quantized_matmul_avx2_neon.cpp.
#pragma once

#include "src/quantized_matmul/fast/fixed_point_rounding.h"
#include "src/quantized_matmul/fast/fixed_point_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// R = M · rows_of_integers rows, grouped by quantization group.
struct Activations {
    int64_t R, group_size;
    int16_t* integers;  // groups × R × group_size
    Factors* factors;   // groups × R

    Activations(const QuantizedMatmulJob& job, void* scratch)
        : R(job.M * rows_of_integers(job.format)),
          group_size(job.group_size),
          integers(static_cast<int16_t*>(scratch)),
          factors(reinterpret_cast<Factors*>(integers + R * job.I)) {}

    const Shorts* group(int64_t g, int64_t r) const {
        return reinterpret_cast<const Shorts*>(integers + (g * R + r) * group_size);
    }
};

// Position of element i of a group after unpacking: bytes with two 4-bit values unpack to a vector
// of even and a vector of odd elements.
inline int place_of(int i, int bits) {
    const int run = i / (2 * SHORTS) * (2 * SHORTS);
    return bits == 8 ? i : run + i % 2 * SHORTS + (i - run) / 2;
}

void prepare_group(const QuantizedMatmulJob& job, const Activations& to, int64_t m, int64_t g) {
    RoundedGroup rounded[MAX_ROWS_OF_INTEGERS];
    round_group(job, m, g, rounded);
    const int rows = rows_of_integers(job.format);
    for (int row = 0; row < rows; row++) {
        const int64_t at = g * to.R + m * rows + row;
        to.factors[at] = rounded[row].factors;
        int16_t* integers = to.integers + at * job.group_size;
        for (int i = 0; i < job.group_size; i++) {
            integers[place_of(i, job.bits)] =
                static_cast<int16_t>(rounded[row].integers[i / LANES][i % LANES]);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
