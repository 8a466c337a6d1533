// Attention of a few query rows to a tile, as in decoding, which is memory-bound.
//
// With many rows, it pays off to convert keys and values to float32 in L1 first. With few rows,
// each store and load would serve only one to four multiplications, so keys are multiplied in
// registers right after their transposition, and values right after loading. One row of a later
// tile is prefetched after every few multiplications; in larger batches, prefetches would not
// overlap with arithmetic.
//
// Summation orders equal those of attention_block.h, so a row's bits do not depend on the kernel.
#pragma once

#include "src/flash_attention/fast/attention_tile.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int SCORE_VECTORS = 2;  // vectors of keys scored at the same time
constexpr int SCORE_KEYS = SCORE_VECTORS * LANES;
static_assert(KEYS % SCORE_KEYS == 0);

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int REGISTERS_FOR_OUT = 8;  // of 16 vector registers
#else
constexpr int REGISTERS_FOR_OUT = 16;  // of 32 vector registers
#endif

// sums += query · keys, for `count` columns starting at d: ROWS rows, LANES keys.
template <int ROWS, Format FORMAT>
__attribute__((always_inline)) inline void add_columns_of_keys(const void* const* keys,
                                                               const float* query, int64_t D,
                                                               int64_t d, auto count, Floats* sums,
                                                               Prefetcher& prefetcher) {
    Floats x[LANES];
    load_transposed<FORMAT>(keys, d, count, x);
    const float* queries[ROWS];
#pragma GCC unroll 4
    for (int row = 0; row < ROWS; row++) {
        queries[row] = query + row * rounded_up(D) + score_steps(d, FORMAT);
    }
    const auto add = [&]<typename Element>(int i, auto column, Element) {
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            sums[row] = fma(splat(((const Element*)queries[row])[i]), column, sums[row]);
        }
    };
    constexpr int per_lane = ELEMENTS_PER_LANE<FORMAT>;
    constexpr int lanes_per_prefetch = FORMAT == Format::int8 ? 2 : 4;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (i % lanes_per_prefetch == 0) {
            prefetcher.prefetch_next();
        }
        if constexpr (FORMAT == Format::bfloat16 && USES_BF16_DOT) {
            if (2 * i < count) {
                add(i, as_ints(x[i]), int32_t());
            }
        } else {
#pragma GCC unroll 4
            for (int k = 0; k < per_lane; k++) {
                if (per_lane * i + k < count) {
                    add(per_lane * i + k, lane_element<FORMAT>(x[i], k), float());
                }
            }
        }
    }
}

// scores = query · keys, for ROWS rows and SCORE_KEYS keys. Rows of query are rounded_up(D) floats
// apart, rows of scores KEYS floats. Several vectors of sums hide the latency of additions.
template <int ROWS, Format FORMAT>
__attribute__((noinline)) void score_few(const void* const* keys, const float* query, int64_t D,
                                         float* scores, Prefetcher& prefetcher) {
    Floats sums[SCORE_VECTORS][ROWS] = {};
    const auto add = [&](int64_t d, auto count) {
#pragma GCC unroll 2
        for (int v = 0; v < SCORE_VECTORS; v++) {
            add_columns_of_keys<ROWS, FORMAT>(keys + v * LANES, query, D, d, count, sums[v],
                                              prefetcher);
        }
    };
    constexpr int step = KEY_COLUMNS<FORMAT>;
    int64_t d = 0;
    for (; d + step <= D; d += step) {
        add(d, Constant<step>());
    }
    if (d < D) {
        add(d, static_cast<int>(D - d));
    }
#pragma GCC unroll 2
    for (int v = 0; v < SCORE_VECTORS; v++) {
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            store(scores + row * KEYS, v * LANES, Format::float32, sums[v][row]);
        }
    }
}

// out += weights · values, for VECTORS vectors of columns starting at d, ROWS rows, and keys `from`
// … `to` − 1. A single vector may have only `count` columns. Unless `prefetcher` is null, one row
// is prefetched per key.
template <int ROWS, Format FORMAT, int VECTORS>
__attribute__((noinline)) void add_columns(const float* weights, const void* const* values,
                                           int from, int to, int64_t d, int count, float* out,
                                           int64_t width, Prefetcher* prefetcher) {
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * VECTORS; i++) {
        sums[i / VECTORS][i % VECTORS] =
            load_bits<Floats>(out + i / VECTORS * width + d + i % VECTORS * LANES);
    }
    for (int key = from; key < to; key++) {
        if (prefetcher != nullptr) {
            prefetcher->prefetch_next();
        }
        Floats x[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            const int64_t column = d + v * LANES;
            x[v] = VECTORS > 1 || count == LANES ? load(values[key], column, FORMAT)
                                                 : load(values[key], column, FORMAT, count);
        }
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            const Floats weight = splat(weights[row * KEYS + key]);
#pragma GCC unroll 16
            for (int v = 0; v < VECTORS; v++) {
                sums[row][v] = fma(weight, x[v], sums[row][v]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * VECTORS; i++) {
        store(out + i / VECTORS * width, d + i % VECTORS * LANES, Format::float32,
              sums[i / VECTORS][i % VECTORS]);
    }
}

// out += weights · values, for ROWS rows and keys `from` … `to` − 1.
template <int ROWS, Format FORMAT>
void add_values_few(const float* weights, const void* const* values, int from, int to, int64_t D,
                    float* out, int64_t width, Prefetcher& prefetcher) {
    constexpr int VECTORS = REGISTERS_FOR_OUT / (ROWS == 3 ? 4 : ROWS) / (ROWS == 1 ? 2 : 1);
    int64_t d = 0;
    for (; d + VECTORS * LANES <= D; d += VECTORS * LANES) {
        add_columns<ROWS, FORMAT, VECTORS>(weights, values, from, to, d, LANES, out, width,
                                           d == 0 ? &prefetcher : nullptr);
    }
    for (; d < D; d += LANES) {
        const int count = static_cast<int>(D - d < LANES ? D - d : LANES);
        add_columns<ROWS, FORMAT, 1>(weights, values, from, to, d, count, out, width,
                                     d == 0 ? &prefetcher : nullptr);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
