// A few query rows attend to a tile: decoding, where memory is what one waits for.
//
// Keys and values that many rows use are worth a place in the L1 cache as float32. For a few rows a
// store and a load would buy one to four multiplications: here keys are multiplied as soon as they
// are transposed, and values as soon as they are read. After every few multiplications a row of a
// later tile is asked for: in larger portions, memory and arithmetic would wait for each other.
//
// Every sum grows in the same order as in attention_block.h, so that a row's bits do not depend on
// which of the two computes it.
#pragma once

#include "src/flash_attention/attention_tile.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int FEW_ROWS = 4;
constexpr int SCORE_VECTORS = 2;  // of keys, side by side
constexpr int SCORE_KEYS = SCORE_VECTORS * LANES;
static_assert(KEYS % SCORE_KEYS == 0);

#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int REGISTERS_FOR_OUT = 8;  // of 16
#else
constexpr int REGISTERS_FOR_OUT = 16;  // of 32
#endif

// x = columns of LANES keys from column d on, a vector each; of bfloat16 two, as 32-bit words.
template <Format FORMAT>
inline void load_transposed(const void* const* keys, int64_t d, int count, Floats* x) {
    constexpr int step = FORMAT == Format::bfloat16 ? 2 * LANES : LANES;
    for (int i = 0; i < LANES; i++) {
        if constexpr (FORMAT == Format::bfloat16) {
            const void* from = element(keys[i], d, FORMAT);
            x[i] = count == step ? load_bits<Floats>(from) : load_bits<Floats>(from, count, 2);
        } else {
            x[i] = count == step ? load(keys[i], d, FORMAT) : load(keys[i], d, FORMAT, count);
        }
    }
    transpose(x);
}

// scores of ROWS rows with SCORE_KEYS keys = query · keys. Rows of query are D words apart, those
// of scores KEYS. A sum waits for its last addition; while one vector's do, the other's go on.
template <int ROWS, Format FORMAT>
__attribute__((noinline)) void score_few(const void* const* keys, const float* query, int64_t D,
                                         float* scores, Ahead& ahead) {
    constexpr int step = FORMAT == Format::bfloat16 ? 2 * LANES : LANES;
    Floats sums[SCORE_VECTORS][ROWS] = {};
    for (int64_t d = 0; d < D; d += step) {
        const int count = static_cast<int>(D - d < step ? D - d : step);
#pragma GCC unroll 2
        for (int v = 0; v < SCORE_VECTORS; v++) {
            const auto add = [&](const auto* numbers, auto column) {
#pragma GCC unroll 4
                for (int row = 0; row < ROWS; row++) {
                    sums[v][row] = fma(splat(numbers[row * D]), column, sums[v][row]);
                }
            };
            Floats x[LANES];
            load_transposed<FORMAT>(keys + v * LANES, d, count, x);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                if (i % 4 == 0) {
                    ahead.fetch_row();
                }
                if constexpr (FORMAT != Format::bfloat16) {
                    if (i < count) {
                        add(query + d + i, x[i]);
                    }
                } else if constexpr (MULTIPLIES_PAIRS) {
                    if (2 * i < count) {
                        add((const int32_t*)query + d / 2 + i, as_ints(x[i]));
                    }
                } else {
                    if (2 * i < count) {
                        add(query + d + 2 * i, as_floats(as_ints(x[i]) << 16));
                    }
                    if (2 * i + 1 < count) {
                        add(query + d + 2 * i + 1, as_floats(as_ints(x[i]) & ~0xffff));
                    }
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < SCORE_VECTORS; v++) {
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            store(scores + row * KEYS, v * LANES, Format::float32, sums[v][row]);
        }
    }
}

// Columns d … of ROWS rows of out += weights · values, keys `from` to `to` − 1. A single vector may
// have fewer columns: `count`. Unless `ahead` is null, a row is fetched for every key.
template <int ROWS, Format FORMAT, int VECTORS>
__attribute__((noinline)) void add_columns(const float* weights, const Rows& values, int from,
                                           int to, int64_t d, int count, float* out, int64_t width,
                                           Ahead* ahead) {
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS * VECTORS; i++) {
        sums[i / VECTORS][i % VECTORS] =
            load_bits<Floats>(out + i / VECTORS * width + d + i % VECTORS * LANES);
    }
    for (int key = from; key < to; key++) {
        if (ahead != nullptr) {
            ahead->fetch_row();
        }
        Floats x[VECTORS];
#pragma GCC unroll 16
        for (int v = 0; v < VECTORS; v++) {
            const int64_t column = d + v * LANES;
            x[v] = VECTORS > 1 || count == LANES ? load(values.at[key], column, FORMAT)
                                                 : load(values.at[key], column, FORMAT, count);
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

// ROWS rows of out += weights · values, keys `from` to `to` − 1.
template <int ROWS, Format FORMAT>
void add_values_few(const float* weights, const Rows& values, int from, int to, int64_t D,
                    float* out, int64_t width, Ahead& ahead) {
    constexpr int VECTORS = REGISTERS_FOR_OUT / (ROWS == 3 ? 4 : ROWS) / (ROWS == 1 ? 2 : 1);
    int64_t d = 0;
    for (; d + VECTORS * LANES <= D; d += VECTORS * LANES) {
        add_columns<ROWS, FORMAT, VECTORS>(weights, values, from, to, d, LANES, out, width,
                                           d == 0 ? &ahead : nullptr);
    }
    for (; d < D; d += LANES) {
        const int count = static_cast<int>(D - d < LANES ? D - d : LANES);
        add_columns<ROWS, FORMAT, 1>(weights, values, from, to, d, count, out, width,
                                     d == 0 ? &ahead : nullptr);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
