// Activations as 16-bit integers, in the order in which quantized_matmul_avx2_neon.cpp unpacks
// weights.
#pragma once

#include "src/quantized_matmul/fast/fixed_point_rounding.h"
#include "src/quantized_matmul/fast/fixed_point_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

typedef int32_t PairOfShorts __attribute__((may_alias));

// Activations as R = M · rows_of_integers rows of integers, by group.
struct Activations {
    int64_t R, group_size;
    int16_t* integers;  // groups × R × group_size, in the order of paired_position
    Factors* factors;   // groups × R

    Activations(const QuantizedMatmulJob& job, void* scratch)
        : R(job.M * rows_of_integers(job.format)),
          group_size(job.group_size),
          integers(static_cast<int16_t*>(scratch)),
          factors(reinterpret_cast<Factors*>(integers + R * job.I)) {}

    int64_t row_pairs() const { return group_size / 2; }
    const PairOfShorts* pairs(int64_t g, int64_t row) const {
        return reinterpret_cast<const PairOfShorts*>(integers + (g * R + row) * group_size);
    }
};

// Position of a group's element i in `integers`. A uint32 of n weights is unpacked in pairs of one
// weight from each half, elements p and n/2 + p, so activations are paired in the same way.
inline int paired_position(int i, int bits) {
    const int per_word = 32 / bits, half = per_word / 2;
    const int word = i / per_word, k = i % per_word;
    return word * per_word + k % half * 2 + k / half;
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
            integers[paired_position(i, job.bits)] =
                static_cast<int16_t>(rounded[row].integers[i / LANES][i % LANES]);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
