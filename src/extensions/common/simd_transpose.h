// Transposition of LANES × LANES elements in LANES vector registers.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

template <int... INDEX>
struct Indices {};

#if defined(__AVX512F__)
constexpr Indices<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> ALL_LANES;
#elif defined(__AVX2__)
constexpr Indices<0, 1, 2, 3, 4, 5, 6, 7> ALL_LANES;
#else
constexpr Indices<0, 1, 2, 3> ALL_LANES;
#endif

#if defined(__clang__)
#define TINY_LLM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TINY_LLM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Ints{__VA_ARGS__})
#endif

// On every instruction set, each shuffle below compiles to a single instruction that needs no index
// vector.

// Interleaves two of every four lanes of a and b: the first two (FROM = 0: a0 b0 a1 b1) or the last
// two (FROM = 2).
template <int FROM, int... LANE>
inline Floats zip_pairs(Floats a, Floats b, Indices<LANE...>) {
    return TINY_LLM_SHUFFLE(a, b, (LANE / 4 * 4 + FROM + LANE % 4 / 2 + LANE % 2 * LANES)...);
}

// Every other group of four lanes of a, then of b: even groups (FROM = 0) or odd ones (FROM = 4).
template <int FROM, int... LANE>
inline Floats every_other_four(Floats a, Floats b, Indices<LANE...>) {
    return TINY_LLM_SHUFFLE(a, b, (LANE / 4 * 8 + FROM + LANE % 4)...);
}

#undef TINY_LLM_SHUFFLE

inline void zip(Floats& a, Floats& b) {
    const Floats first = zip_pairs<0>(a, b, ALL_LANES);
    b = zip_pairs<2>(a, b, ALL_LANES);
    a = first;
}

inline void deal_groups(Floats& a, Floats& b) {
    const Floats even = every_other_four<0>(a, b, ALL_LANES);
    b = every_other_four<4>(a, b, ALL_LANES);
    a = even;
}

/// Transposes: lane j of x[i] becomes lane i of x[j].
///
/// The first stage transposes 4 × 4 blocks. For four rows a, b, c, d, group u of four lanes of x[i]
/// then holds column 4·u + i. The second stage transposes the groups of four.
inline void transpose(Floats* x) {
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        zip(x[i], x[i + 2]);      // a0 c0 a1 c1, a2 c2 a3 c3
        zip(x[i + 1], x[i + 3]);  // b0 d0 b1 d1, b2 d2 b3 d3
        zip(x[i], x[i + 1]);      // a0 b0 c0 d0, a1 b1 c1 d1
        zip(x[i + 2], x[i + 3]);  // a2 b2 c2 d2, a3 b3 c3 d3
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        if constexpr (LANES >= 8) {
            deal_groups(x[i], x[i + 4]);
        }
        if constexpr (LANES == 16) {
            deal_groups(x[i + 8], x[i + 12]);
            deal_groups(x[i], x[i + 8]);
            deal_groups(x[i + 4], x[i + 12]);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
