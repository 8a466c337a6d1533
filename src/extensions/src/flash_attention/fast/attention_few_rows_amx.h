// Attention of a few query rows to a tile on an AMX processor.
//
// AMX computes scores with the keys as its first operand, whose rows are the keys as they are in
// memory; attention_block_amx.cpp does the same for up to 16 queries. Values would have to be its
// second operand, whose rows are interleaved in pairs, and 8-bit keys would have to be converted.
// For a few queries, both take longer than multiplying with vector instructions.
//
// Results have the bits of tdpbf16ps, which adds the even and the odd ones of every 32 products in
// two chains of fused multiply-adds, and then the sum of the two to the total. Subnormal operands
// and results are zero.
#pragma once

#include "src/flash_attention/fast/attention_softmax.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int PRODUCTS = 2 * TILE_SIDE;  // per element of the result of a tdpbf16ps
constexpr int TILE_COLUMNS = PRODUCTS;   // bfloat16 elements per row of a tile register
static_assert(MAX_HEAD_SIZE % TILE_COLUMNS == 0);

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

// --- scores -------------------------------------------------------------------------------------

// Whether each of 16 rows is at `distance` bytes from the previous one.
inline bool are_equidistant(const void* const* rows, int64_t distance) {
    const auto first = reinterpret_cast<int64_t>(rows[0]);
    const __m512i index = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i offsets = _mm512_mullo_epi64(index, _mm512_set1_epi64(distance));
    const auto differ = [&](int row) {
        const __m512i base = _mm512_set1_epi64(first + row * distance);
        return _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(rows + row),
                                        _mm512_add_epi64(base, offsets));
    };
    return (differ(0) | differ(TILE_SIDE / 2)) == 0;
}

// Transposes the products of 16 keys and QUERIES queries, of which the first `rows` are stored in
// rows of KEYS scores.
template <int QUERIES>
inline void store_scores(const float* products, int rows, float* scores) {
    Floats x[TILE_SIDE];
    if constexpr (QUERIES == TILE_SIDE) {
        for (int key = 0; key < TILE_SIDE; key++) {
            x[key] = load_bits<Floats>(products + key * QUERIES);
        }
        transpose(x);
    } else {
        static_assert(QUERIES * TILE_SIDE == 4 * LANES);
        const auto load_eight_keys = [&](int v, int row) {
            const __m512i lanes = (__m512i)(lane_indices() % (LANES / 2) * QUERIES + row);
            return _mm512_permutex2var_ps(_mm512_load_ps(products + v * LANES), lanes,
                                          _mm512_load_ps(products + (v + 1) * LANES));
        };
        for (int row = 0; row < QUERIES; row++) {
            const __m256 last_keys = _mm512_castps512_ps256(load_eight_keys(2, row));
            x[row] = (Floats)_mm512_insertf32x8(load_eight_keys(0, row), last_keys, 1);
        }
    }
    for (int row = 0; row < rows; row++) {
        store(scores, row * KEYS, Format::float32, x[row]);
    }
}

// scores = query · keys, for up to QUERIES rows and bfloat16 keys. Fewer than 16 keys, keys that
// are not equidistant, and heads whose size is not a multiple of 32 are copied first. Tile
// registers: 0 products of keys and queries, 4 queries, 6 keys.
template <int QUERIES>
void score_in_place(const AttentionBlock& block, const Tile& tile, Prefetcher& prefetcher) {
    constexpr int STRIDE = QUERIES * sizeof(float);
    constexpr int ROWS_PER_PREFETCH = 3;  // per multiplication; for D = 128, 48 of 128 rows
    alignas(64) float products[KEYS * QUERIES];
    alignas(64) __m512i copies[TILE_SIDE][MAX_HEAD_SIZE / TILE_COLUMNS];
    for (int first = 0; first < tile.count; first += TILE_SIDE) {
        const void* const* keys = tile.keys + first;
        const int count = tile.count - first < TILE_SIDE ? tile.count - first : TILE_SIDE;
        auto from = static_cast<const char*>(keys[0]);
        int64_t stride = count > 1 ? (const char*)keys[1] - from : 0;
        if (block.D % TILE_COLUMNS != 0 || count < TILE_SIDE || !are_equidistant(keys, stride)) {
            for (int i = 0; i < count; i++) {
                copies[i][(block.D - 1) / TILE_COLUMNS] = _mm512_setzero_si512();  // beyond D
                memcpy(copies[i], keys[i], block.D * 2);
            }
            compiler_barrier();
            from = (const char*)copies;
            stride = sizeof copies[0];
        }
        _tile_zero(0);
        for (int64_t d = 0; d < block.D; d += TILE_COLUMNS) {
            _tile_loadd(6, from + d * 2, stride);
            _tile_loadd(4, block.query + d / 2 * QUERIES, STRIDE);
            _tile_dpbf16ps(0, 6, 4);
            for (int i = 0; i < ROWS_PER_PREFETCH; i++) {
                prefetcher.prefetch_next();
            }
        }
        _tile_stored(0, products + first * QUERIES, STRIDE);
    }
    // In a separate loop, because a load that follows a tile store stalls until it is complete.
    for (int first = 0; first < tile.count; first += TILE_SIDE) {
        store_scores<QUERIES>(products + first * QUERIES, block.rows, block.scores + first);
    }
}

// sums += query · keys, for ROWS rows of `width` floats and `columns` columns of LANES keys, x.
template <int ROWS>
__attribute__((always_inline)) inline void add_columns_of_keys(const Floats* x, const float* query,
                                                               int64_t width, int columns,
                                                               Floats* sums,
                                                               Prefetcher& prefetcher) {
    constexpr int PER_LANE = ELEMENTS_PER_LANE<Format::int8>, COLUMNS_PER_PREFETCH = 8;
#pragma GCC unroll 2
    for (int first = 0; first < KEY_COLUMNS<Format::int8>; first += PRODUCTS) {
        if (first >= columns) {
            break;
        }
        Floats chains[ROWS][2] = {};
#pragma GCC unroll 32
        for (int i = first; i < first + PRODUCTS; i++) {
            if (i % COLUMNS_PER_PREFETCH == 0) {
                prefetcher.prefetch_next();
            }
            const Floats column = lane_element<Format::int8>(x[i / PER_LANE], i % PER_LANE);
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

// scores = query · keys, for ROWS rows and two vectors of 8-bit keys, with vector instructions:
// converting the keys for AMX takes longer than multiplying them.
template <int ROWS>
__attribute__((noinline)) void score_two_vectors(const void* const* keys,
                                                 const AttentionBlock& block, float* scores,
                                                 Prefetcher& prefetcher) {
    constexpr int COLUMNS = KEY_COLUMNS<Format::int8>;
    Floats sums[2][ROWS] = {};
    for (int64_t d = 0; d < block.D; d += COLUMNS) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            Floats x[LANES];
            const int columns = static_cast<int>(block.D - d < COLUMNS ? block.D - d : COLUMNS);
            if (columns == COLUMNS) {
                load_transposed<Format::int8>(keys + v * LANES, d, Constant<COLUMNS>(), x);
            } else {
                load_transposed<Format::int8>(keys + v * LANES, d, columns, x);
            }
            add_columns_of_keys<ROWS>(x, block.query + d, block.width, columns, sums[v],
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

// scores = query · keys, for ROWS rows and 8-bit keys.
template <int ROWS>
void score_few_int8(const AttentionBlock& block, const Tile& tile, Prefetcher& prefetcher) {
    const WithoutSubnormals mode;
    for (int key = 0; key < tile.count; key += 2 * LANES) {
        const void* keys[2 * LANES];
        for (int i = 0; i < 2 * LANES; i++) {
            keys[i] = tile.keys[key + i < tile.count ? key + i : tile.count - 1];
        }
        score_two_vectors<ROWS>(keys, block, block.scores + key, prefetcher);
    }
}

// --- values -------------------------------------------------------------------------------------

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

// --- a tile -------------------------------------------------------------------------------------

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
    if constexpr (FORMAT == Format::int8) {
        score_few_int8<ROWS>(block, tile, prefetcher);
    } else {
        score_in_place<FEW_ROWS>(block, tile, prefetcher);
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
