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
    int16_t* integers;  // groups × R × group_size, paired as in store_pairs
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

typedef int32_t FourInts __attribute__((vector_size(16)));
typedef int64_t TwoPairs __attribute__((vector_size(16)));

// Writes 8 integers as 4 pairs of 16 bits. A uint32 of n weights is unpacked in pairs of one weight
// from each half, elements p and n/2 + p, so activations are paired in the same way. 8 integers
// match one word of 4-bit weights, or two words of 8-bit weights.
inline void store_pairs(const int32_t* integers, int bits, int16_t* out) {
    auto lower = load_bits<TwoPairs>(integers), upper = load_bits<TwoPairs>(integers + 4);
    if (bits == 8) {
        const TwoPairs first = lower, second = upper;
        lower = TwoPairs{first[0], second[0]};
        upper = TwoPairs{first[1], second[1]};
    }
    const FourInts pairs = ((FourInts)lower & 0xffff) | ((FourInts)upper << 16);
    memcpy(out, &pairs, sizeof pairs);
}

void prepare_group(const QuantizedMatmulJob& job, const Activations& to, int64_t m, int64_t g) {
    RoundedGroup rounded[MAX_ROWS_OF_INTEGERS];
    round_group(job, m, g, rounded);
    const int rows = rows_of_integers(job.format);
    for (int row = 0; row < rows; row++) {
        const int64_t at = g * to.R + m * rows + row;
        to.factors[at] = rounded[row].factors;
        const auto integers = reinterpret_cast<const int32_t*>(rounded[row].integers);
        for (int i = 0; i < job.group_size; i += 8) {
            store_pairs(integers + i, job.bits, to.integers + at * job.group_size + i);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
