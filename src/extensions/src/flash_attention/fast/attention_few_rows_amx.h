// Attention of a few query rows to a tile on an AMX processor, with vector instructions: AMX would
// need keys and values in another layout, and changing it takes longer than multiplying them.
//
// The bits are those of tdpbf16ps: of every 32 products, it adds the even and the odd ones in two
// chains of fused multiply-adds, and the sum of the two to the total. Subnormal operands and
// results are zero.
#pragma once

#include "src/flash_attention/fast/attention_softmax.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int PRODUCTS = 2 * TILE_SIDE;  // per element of the result of a tdpbf16ps

// Treats subnormals as zero on the calling thread, for functions that are not inlined: compilers
// may move arithmetic across a change of the mode.
class WithoutSubnormals {
   public:
    WithoutSubnormals() { _mm_setcsr(saved_ | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO); }
    ~WithoutSubnormals() { _mm_setcsr(saved_); }
    WithoutSubnormals(const WithoutSubnormals&) = delete;
    WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

   private:
    static constexpr unsigned FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x40;
    const unsigned saved_ = _mm_getcsr();
};

// sums += query · keys, for ROWS rows of `width` floats and LANES keys, of which x holds `columns`
// columns.
template <int ROWS, Format FORMAT>
__attribute__((always_inline)) inline void add_columns_of_keys(const Floats* x, const float* query,
                                                               int64_t width, int columns,
                                                               Floats* sums,
                                                               Prefetcher& prefetcher) {
    constexpr int PER_LANE = ELEMENTS_PER_LANE<FORMAT>, COLUMNS_PER_PREFETCH = 8;
#pragma GCC unroll 2
    for (int first = 0; first < KEY_COLUMNS<FORMAT>; first += PRODUCTS) {
        if (first >= columns) {
            break;
        }
        Floats chains[ROWS][2] = {};
#pragma GCC unroll 32
        for (int i = first; i < first + PRODUCTS; i++) {
            if (i % COLUMNS_PER_PREFETCH == 0) {
                prefetcher.prefetch_next();
            }
            const Floats column = lane_element<FORMAT>(x[i / PER_LANE], i % PER_LANE);
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; row++) {
                Floats& chain = chains[row][i % 2];
                chain = fma(splat(query[row * width + i]), column, chain);
            }
        }
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            sums[row] += chains[row][0] + chains[row][1];
        }
    }
}

// scores = query · keys, for ROWS rows and two vectors of keys.
template <int ROWS, Format FORMAT>
__attribute__((noinline)) void score_few(const void* const* keys, const AttentionBlock& block,
                                         float* scores, Prefetcher& prefetcher) {
    constexpr int COLUMNS = KEY_COLUMNS<FORMAT>;
    Floats sums[2][ROWS] = {};
    for (int64_t d = 0; d < block.D; d += COLUMNS) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            Floats x[LANES];
            const int columns = static_cast<int>(block.D - d < COLUMNS ? block.D - d : COLUMNS);
            if (columns == COLUMNS) {
                load_transposed<FORMAT>(keys + v * LANES, d, Constant<COLUMNS>(), x);
            } else {
                load_transposed<FORMAT>(keys + v * LANES, d, columns, x);
            }
            add_columns_of_keys<ROWS, FORMAT>(x, block.query + d, block.width, columns, sums[v],
                                              prefetcher);
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            store(scores + row * KEYS, v * LANES, Format::float32, sums[v][row]);
        }
    }
}

// x truncated to bfloat16, as float32.
inline Floats truncated(Floats x) {
    return as_floats(as_ints(x) & static_cast<int32_t>(0xffff0000));
}

// High and low parts of a few rows' weights, as float32.
struct WeightParts {
    float high[FEW_ROWS][KEYS], low[FEW_ROWS][KEYS];

    WeightParts(const float* weights, int rows) {
        for (int row = 0; row < rows; row++) {
            for (int key = 0; key < KEYS; key += LANES) {
                const Floats x = load_bits<Floats>(weights + row * KEYS + key);
                store(high[row], key, Format::float32, truncated(x));
                store(low[row], key, Format::float32, truncated(x - truncated(x)));
            }
        }
    }
};

// out += weights · values, for ROWS rows from `row` on, keys `from` … `to` − 1, and VECTORS vectors
// of columns from d on; a single vector may have only `count`.
template <int ROWS, Format FORMAT, int VECTORS>
__attribute__((noinline)) void add_columns(const WeightParts& weights, int row,
                                           const void* const* values, int from, int to, int64_t d,
                                           int count, float* out, int64_t width,
                                           Prefetcher& prefetcher) {
    constexpr int PASSES = 8 / VECTORS;  // over the keys, if D is 128; each prefetches at some keys
    const int pass = static_cast<int>(d / (VECTORS * LANES));
    for (int first = from / PRODUCTS * PRODUCTS; first < to; first += PRODUCTS) {
        Floats high[2][ROWS][VECTORS] = {}, low[2][ROWS][VECTORS] = {};
        const auto add_key = [&](int key, auto parity) __attribute__((always_inline)) {
            if (key % PASSES == pass) {
                prefetcher.prefetch_next();
            }
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                const int64_t column = d + v * LANES;
                const Floats x = VECTORS > 1 || count == LANES
                                     ? load(values[key], column, FORMAT)
                                     : load(values[key], column, FORMAT, count);
#pragma GCC unroll 4
                for (int r = 0; r < ROWS; r++) {
                    Floats &h = high[parity][r][v], &l = low[parity][r][v];
                    h = fma(splat(weights.high[row + r][key]), x, h);
                    l = fma(splat(weights.low[row + r][key]), x, l);
                }
            }
        };
        const int end = to < first + PRODUCTS ? to : first + PRODUCTS;
        int key = first < from ? from : first;
        if (key % 2 == 1) {
            add_key(key++, Constant<1>());
        }
        for (; key + 1 < end; key += 2) {
            add_key(key, Constant<0>());
            add_key(key + 1, Constant<1>());
        }
        if (key < end) {
            add_key(key, Constant<0>());
        }
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                float* total_at = out + r * width + d + v * LANES;
                Floats sum = load_bits<Floats>(total_at);
                sum += high[0][r][v] + high[1][r][v];
                sum += low[0][r][v] + low[1][r][v];
                store(total_at, 0, Format::float32, sum);
            }
        }
    }
}

// out += weights · values, for ROWS rows from `row` on and keys `from` … `to` − 1.
template <int ROWS, Format FORMAT>
void add_values_few(const AttentionBlock& block, const WeightParts& weights, int row, int from,
                    int to, const Tile& tile, Prefetcher& prefetcher) {
    constexpr int VECTORS = ROWS == 1 ? 4 : ROWS == 2 ? 2 : 1;
    float* out = block.out + row * block.width;
    int64_t d = 0;
    for (; d + VECTORS * LANES <= block.D; d += VECTORS * LANES) {
        add_columns<ROWS, FORMAT, VECTORS>(weights, row, tile.values, from, to, d, LANES, out,
                                           block.width, prefetcher);
    }
    for (; d < block.D; d += LANES) {
        const int count = static_cast<int>(block.D - d < LANES ? block.D - d : LANES);
        add_columns<ROWS, FORMAT, 1>(weights, row, tile.values, from, to, d, count, out,
                                     block.width, prefetcher);
    }
}

// attend for a block of up to ROWS rows.
template <Format FORMAT, int ROWS = FEW_ROWS>
void attend_few(const AttentionBlock& block, const int* visible, const int* hidden,
                const float* mask, const Tile& tile, Prefetcher& prefetcher) {
    if constexpr (ROWS > 1) {
        if (block.rows < ROWS) {
            attend_few<FORMAT, ROWS - 1>(block, visible, hidden, mask, tile, prefetcher);
            return;
        }
    }
    {
        const WithoutSubnormals mode;
        for (int key = 0; key < tile.count; key += 2 * LANES) {
            const void* keys[2 * LANES];
            for (int i = 0; i < 2 * LANES; i++) {
                keys[i] = tile.keys[key + i < tile.count ? key + i : tile.count - 1];
            }
            score_few<ROWS, FORMAT>(keys, block, block.scores + key, prefetcher);
        }
    }
    const Softmax softmax(block, visible, hidden, mask, tile);
    bool see_same_keys = hidden == nullptr;
    for (int row = 0; row < ROWS; row++) {
        softmax.run(row);
        see_same_keys = see_same_keys && visible[row] == visible[0];
    }
    const WeightParts weights(block.scores, ROWS);
    const WithoutSubnormals mode;
    if (see_same_keys) {
        add_values_few<ROWS, FORMAT>(block, weights, 0, 0, visible[0], tile, prefetcher);
    }
    for (int row = 0; row < ROWS && !see_same_keys; row++) {
        add_values_few<1, FORMAT>(block, weights, row, hidden == nullptr ? 0 : hidden[row],
                                  visible[row], tile, prefetcher);
    }
    prefetcher.prefetch_until(1);
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
