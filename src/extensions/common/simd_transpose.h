// Transposing a square of LANES × LANES numbers that lie in LANES vectors.
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

// Cut a and b into runs of RUN lanes. The even runs of both, taking turns: a's first, b's first, …
template <int RUN, int... LANE>
inline Floats even_runs(Floats a, Floats b, Indices<LANE...>) {
    return TINY_LLM_SHUFFLE(a, b, (LANE & RUN ? LANES + LANE - RUN : LANE)...);
}

// The odd runs of both, taking turns.
template <int RUN, int... LANE>
inline Floats odd_runs(Floats a, Floats b, Indices<LANE...>) {
    return TINY_LLM_SHUFFLE(a, b, (LANE & RUN ? LANES + LANE : LANE + RUN)...);
}

#undef TINY_LLM_SHUFFLE

// Exchanges the off-diagonal quarters of every square of 2·RUN × 2·RUN.
template <int RUN>
inline void exchange_quarters(Floats* x) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if ((i & RUN) == 0) {
            const Floats upper = x[i], lower = x[i + RUN];
            x[i] = even_runs<RUN>(upper, lower, ALL_LANES);
            x[i + RUN] = odd_runs<RUN>(upper, lower, ALL_LANES);
        }
    }
}

/// x[i] lane j becomes x[j] lane i: quarters are exchanged, then the quarters of quarters.
inline void transpose(Floats* x) {
    if constexpr (LANES >= 16) {
        exchange_quarters<8>(x);
    }
    if constexpr (LANES >= 8) {
        exchange_quarters<4>(x);
    }
    exchange_quarters<2>(x);
    exchange_quarters<1>(x);
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
