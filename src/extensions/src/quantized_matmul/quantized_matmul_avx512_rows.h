// Rows of activations times 64 outputs, a group at a time: step 4 of quantized_matmul_avx512.cpp.
#pragma once

#include "src/quantized_matmul/quantized_matmul_avx512_panel.h"

namespace tiny_llm_ext {

namespace {

constexpr int MAX_ROWS = 6;     // rows × panels accumulators fit in the registers
constexpr int DIRECT_ROWS = 4;  // up to here, unpacking as we go is cheaper

// totals[r][c] += scale · sums of the group + bias · Σ a
template <int ROWS>
inline void add_group(const Panel& panel, int64_t first_row, int64_t group,
                      const __m512 (&products)[ROWS][PANELS], __m512* totals) {
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        const __m512 sum =
            _mm512_set1_ps(panel.sums[(first_row + r) * panel.layout.groups + group]);
#pragma GCC unroll 4
        for (int c = 0; c < PANELS; c++) {
            __m512 total = totals[r * PANELS + c];
            total = _mm512_fmadd_ps(products[r][c], panel.scales[group * PANELS + c], total);
            totals[r * PANELS + c] = _mm512_fmadd_ps(sum, panel.biases[group * PANELS + c], total);
        }
    }
}

// One group of ROWS rows. `weights(word, p, c)` gives the vector of look-up p of a word of the
// group.
template <int ROWS, int PLANES, typename Weights>
inline void multiply_group(const Panel& panel, int64_t first_row, int64_t group,
                           const Weights& weights, __m512* totals) {
    const int words = panel.layout.words_per_group;
    const int64_t stride = panel.layout.row_pairs;
    const uint32_t* a = panel.pairs + first_row * stride + group * words * PAIRS * PLANES;
    __m512 products[ROWS][PANELS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < PANELS; c++) {
            products[r][c] = _mm512_setzero_ps();
        }
    }
    for (int word = 0; word < words; word++, a += PAIRS * PLANES) {
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
            __m512bh w[PANELS];
#pragma GCC unroll 4
            for (int c = 0; c < PANELS; c++) {
                w[c] = (__m512bh)weights(word, p, c);
            }
#pragma GCC unroll 2
            for (int plane = 0; plane < PLANES; plane++) {
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; r++) {
                    const __m512bh x = (__m512bh)_mm512_set1_epi32(
                        static_cast<int>(a[r * stride + p * PLANES + plane]));
#pragma GCC unroll 4
                    for (int c = 0; c < PANELS; c++) {
                        products[r][c] = _mm512_dpbf16_ps(products[r][c], x, w[c]);
                    }
                }
            }
        }
    }
    add_group<ROWS>(panel, first_row, group, products, totals);
}

// Few rows: the weights unpack as they are used.
template <int ROWS, int PLANES>
void group_direct(const Panel& panel, int64_t first_row, int64_t group, int first_word,
                  __m512* totals) {
    const __m512i even = panel.tables[0], odd = panel.tables[1];
    const __m512i(*words)[PANELS] = panel.words + first_word;
    // Two cache lines of each row of the block ahead: 128, one a look-up.
    static_assert(BLOCK * sizeof(uint32_t) == 2 * 64 && BLOCK * PAIRS == 2 * PANELS * LANES);
    const char* ahead = (const char*)(panel.ahead + 2 * first_word * panel.layout.words);
    const int64_t row_bytes = panel.layout.words * 4;
    multiply_group<ROWS, PLANES>(
        panel, first_row, group,
        [&](int word, int p, int c) __attribute__((always_inline)) {
            if (c == 0) {
                _mm_prefetch(ahead + (2 * word + p / 2) * row_bytes + p % 2 * 64, _MM_HINT_T0);
            }
            return unpack(words[word][c], p, p % 2 == 0 ? even : odd);
        },
        totals);
}

// Many rows: they share weights that were unpacked before.
template <int ROWS, int PLANES>
void group_unpacked(const Panel& panel, int64_t first_row, int64_t group, const __m512i* unpacked,
                    __m512* totals) {
    multiply_group<ROWS, PLANES>(
        panel, first_row, group,
        [&](int word, int p, int c)
            __attribute__((always_inline)) { return unpacked[(word * PAIRS + p) * PANELS + c]; },
        totals);
}

template <int N>
struct Rows {
    static constexpr int COUNT = N;
};

// Calls f(Rows<N>) with N = rows, which is 1 … MAX: the number of rows becomes a constant.
template <int MAX, typename Function>
inline void with_rows(int64_t rows, const Function& f) {
    if constexpr (MAX > 1) {
        if (rows < MAX) {
            return with_rows<MAX - 1>(rows, f);
        }
    }
    f(Rows<MAX>{});
}

// One group, whose words begin at `word` of the block, for 1 … DIRECT_ROWS rows.
template <int PLANES>
void few_rows(const Panel& panel, int64_t rows, int64_t first_row, int64_t group, int word,
              __m512* totals) {
    with_rows<DIRECT_ROWS>(rows, [&](auto n) {
        group_direct<n.COUNT, PLANES>(panel, first_row, group, word, totals);
    });
}

// The same for any number of rows.
template <int PLANES>
void many_rows(const Panel& panel, int64_t rows, int64_t first_row, int64_t group, int word,
               __m512* totals) {
    __m512i unpacked[BLOCK * PAIRS * PANELS];
    for (int w = 0; w < panel.layout.words_per_group; w++) {
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
#pragma GCC unroll 4
            for (int c = 0; c < PANELS; c++) {
                unpacked[(w * PAIRS + p) * PANELS + c] =
                    unpack(panel.words[word + w][c], p, panel.tables[p % 2]);
            }
        }
    }
    for (int64_t r = 0; r < rows; r += MAX_ROWS) {
        with_rows<MAX_ROWS>(rows - r < MAX_ROWS ? rows - r : MAX_ROWS, [&](auto n) {
            group_unpacked<n.COUNT, PLANES>(panel, first_row + r, group, unpacked,
                                            totals + r * PANELS);
        });
    }
}

}  // namespace

}  // namespace tiny_llm_ext
