// A block of query rows attends to keys and values, tile by tile: the inside of flash attention.
//
// It does not know where tiles come from: whoever uses it hands over 64 addresses at a time, of
// rows in one buffer or in pages. Both matrix products of a tile are one function: scores += query
// · keys (with the keys transposed) and out += weights · values. A sum is never split over lanes;
// it grows in the order of its index, whatever rows are computed beside it.
#pragma once

#include "common/simd_matmul.h"
#include "common/simd_transpose.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEYS = ATTENTION_TILE;
constexpr int KEY_VECTORS = KEYS / LANES;

/// Addresses of up to KEYS rows of D elements.
struct Rows {
    const void* at[KEYS];
    int count;
};

struct Tile {
    Rows keys, values;
};

/// The state of a block of query rows, and room for the tile at hand. All in one piece of scratch.
struct AttentionBlock {
    int rows;
    int64_t D;
    int64_t width;   // D, rounded up to whole vectors
    float* scores;   // rows × KEYS; then the weights
    float* out;      // rows × width, not yet divided by sums
    float* keys;     // D × KEYS, and in the same place once the scores are known,
    float* values;   // KEYS × width: together they would not fit in the L1 cache
    float* sums;     // rows × LANES: of the weights, lane by lane
    float* largest;  // rows: the largest score so far
    float* query;    // rows × D, times scale
};

inline int64_t rounded_up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/// Floats of scratch that a block needs.
inline int64_t block_scratch(int rows, int64_t D) {
    const int64_t width = rounded_up(D);
    return rows * (KEYS + width + LANES + D) + rounded_up(rows) + KEYS * width;
}

/// A block that has seen no keys. `query` has to be filled in.
inline AttentionBlock make_block(int rows, int64_t D, float* scratch) {
    AttentionBlock block;
    auto take = [&](int64_t floats) {
        float* taken = scratch;
        scratch += floats;
        return taken;
    };
    block.rows = rows;
    block.D = D;
    block.width = rounded_up(D);
    block.scores = take(rows * KEYS);
    block.out = take(rows * block.width);
    block.keys = block.values = take(KEYS * block.width);
    block.sums = take(static_cast<int64_t>(rows) * LANES);
    block.largest = take(rounded_up(rows));
    block.query = take(rows * D);
    for (int64_t i = 0; i < rows * block.width; i++) {
        block.out[i] = 0;
    }
    for (int i = 0; i < rows * LANES; i++) {
        block.sums[i] = 0;
    }
    for (int row = 0; row < rows; row++) {
        block.largest[row] = -__builtin_inff();
    }
    return block;
}

// --- tiles --------------------------------------------------------------------------------------

// Asks for a row that will be read one tile later.
inline void prefetch(const void* row, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(static_cast<const char*>(row) + i, 0, 2);
    }
}

inline int64_t bytes_of(int64_t D, Format format) {
    return D * (format == Format::float32 ? 4 : 2);
}

inline const void* element(const void* row, int64_t d, Format format) {
    return static_cast<const char*>(row) + bytes_of(d, format);
}

// `to` = columns d … d + count − 1 of LANES rows, transposed: count rows of LANES, KEYS apart.
__attribute__((noinline)) void transpose_columns(const void* const* rows, int64_t d, int count,
                                                 Format format, float* to) {
    Floats x[LANES];
    for (int i = 0; i < LANES; i++) {
        x[i] = count == LANES ? load(rows[i], d, format) : load(rows[i], d, format, count);
    }
    transpose(x);
    for (int i = 0; i < count; i++) {
        store(to, i * KEYS, Format::float32, x[i]);
    }
}

// The same of up to 2·LANES columns of bfloat16. Two neighbours are moved as one 32-bit word and
// taken apart afterwards, which needs half the shuffles.
__attribute__((noinline)) void transpose_column_pairs(const void* const* rows, int64_t d, int count,
                                                      float* to) {
    Floats x[LANES];
    for (int i = 0; i < LANES; i++) {
        const void* from = element(rows[i], d, Format::bfloat16);
        x[i] = count == 2 * LANES ? load_bits<Floats>(from) : load_bits<Floats>(from, count, 2);
    }
    transpose(x);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        const Ints pairs = as_ints(x[i]);
        if (2 * i < count) {
            store(to, 2 * i * KEYS, Format::float32, as_floats(pairs << 16));
        }
        if (2 * i + 1 < count) {
            store(to, (2 * i + 1) * KEYS, Format::float32, as_floats(pairs & ~0xffff));
        }
    }
}

/// keys = the rows, transposed: D × KEYS. Columns beyond the last row repeat it, up to a vector.
inline void load_keys(const AttentionBlock& block, const Rows& rows, const Rows& next,
                      Format format) {
    const int64_t bytes = bytes_of(block.D, format);
    const int64_t step = format == Format::bfloat16 ? 2 * LANES : LANES;
    for (int first = 0; first < rows.count; first += LANES) {
        const void* from[LANES];
        for (int i = 0; i < LANES; i++) {
            from[i] = rows.at[first + i < rows.count ? first + i : rows.count - 1];
            if (first + i < next.count) {
                prefetch(next.at[first + i], bytes);
            }
        }
        for (int64_t d = 0; d < block.D; d += step) {
            const int count = static_cast<int>(block.D - d < step ? block.D - d : step);
            float* to = block.keys + d * KEYS + first;
            if (format == Format::bfloat16) {
                transpose_column_pairs(from, d, count, to);
            } else {
                transpose_columns(from, d, count, format, to);
            }
        }
    }
}

/// values = the rows, as float32, zero beyond D.
inline void load_values(const AttentionBlock& block, const Rows& rows, const Rows& next,
                        Format format) {
    const int64_t D = block.D, bytes = bytes_of(D, format);
    for (int row = 0; row < rows.count; row++) {
        if (row < next.count) {
            prefetch(next.at[row], bytes);
        }
        float* to = block.values + row * block.width;
        int64_t d = 0;
        for (; d + LANES <= D; d += LANES) {
            store(to, d, Format::float32, load(rows.at[row], d, format));
        }
        if (d < D) {
            store(to, d, Format::float32, load(rows.at[row], d, format, static_cast<int>(D - d)));
        }
    }
}

// --- the online softmax -------------------------------------------------------------------------

// Measures sums and out of a row relative to a larger score.
inline void rescale(const AttentionBlock& block, int row, float factor) {
    float* sums = block.sums + row * LANES;
    store(sums, 0, Format::float32, load_bits<Floats>(sums) * factor);
    float* out = block.out + row * block.width;
    for (int64_t d = 0; d < block.width; d += LANES) {
        store(out, d, Format::float32, load_bits<Floats>(out + d) * factor);
    }
}

/// Turns a row's scores into weights exp(score − largest), zero from key `visible` on.
///
/// `mask` is null, or has KEYS numbers to add; −inf hides a key whatever its score.
inline void weigh(const AttentionBlock& block, int row, int visible, const float* mask) {
    const Floats hidden = splat(-__builtin_inff());
    float* scores = block.scores + row * KEYS;
    const float before = block.largest[row];
    Floats x[KEY_VECTORS];
    Floats most = splat(before);
    for (int v = 0; v < KEY_VECTORS; v++) {
        x[v] = load_bits<Floats>(scores + v * LANES);
        if (mask != nullptr) {
            const Floats added = load_bits<Floats>(mask + v * LANES);
            x[v] = added == hidden ? hidden : x[v] + added;
        }
        if (visible < KEYS) {
            x[v] = lane_numbers() < visible - v * LANES ? x[v] : hidden;
        }
        most = max(x[v], most);
    }
    const float largest = max(most);
    // Where every key is hidden so far, 0 keeps −inf − largest from being NaN.
    const Floats base = splat(largest == -__builtin_inff() ? 0 : largest);
    if (largest > before) {
        rescale(block, row, exp(splat(before) - base)[0]);
        block.largest[row] = largest;
    }
    float* sums = block.sums + row * LANES;
    Floats total = load_bits<Floats>(sums);
    for (int v = 0; v < KEY_VECTORS; v++) {
        const Floats weights = exp(x[v] - base);
        total = total + weights;
        store(scores, v * LANES, Format::float32, weights);
    }
    store(sums, 0, Format::float32, total);
}

// --- a tile -------------------------------------------------------------------------------------

/// scores of rows from `first` on = query · keys.
inline void score(const AttentionBlock& block, int first) {
    const int rows = block.rows - first;
    float* scores = block.scores + first * KEYS;
    for (int64_t i = 0; i < static_cast<int64_t>(rows) * KEYS; i++) {
        scores[i] = 0;
    }
    multiply_add(rows, KEYS, static_cast<int>(block.D), block.query + first * block.D, block.D,
                 block.keys, KEYS, scores, KEYS);
}

/// out of rows from `first` on += weights · values, for the first visible[row] keys of the tile;
/// visible does not fall from row to row.
///
/// Several rows share the values that all of them see; the rest is each row's own. So a key that a
/// row may not see is not multiplied by zero, which would be NaN for an infinite value.
inline void add_values(const AttentionBlock& block, int first, const int* visible) {
    for (int row = first; row < block.rows; row += MATMUL_ROWS) {
        const int together = block.rows - row < MATMUL_ROWS ? block.rows - row : MATMUL_ROWS;
        const int shared = visible[row];
        const int columns = static_cast<int>(block.width);
        multiply_add(together, columns, shared, block.scores + row * KEYS, KEYS, block.values,
                     block.width, block.out + row * block.width, block.width);
        for (int own = row + 1; own < row + together; own++) {
            multiply_add(1, columns, visible[own] - shared, block.scores + own * KEYS + shared,
                         KEYS, block.values + shared * block.width, block.width,
                         block.out + own * block.width, block.width);
        }
    }
}

/// Rows from `first` on attend to a tile. `next` is prefetched. `mask` is null or rows × KEYS.
inline void attend(const AttentionBlock& block, int first, const int* visible, const float* mask,
                   const Tile& tile, const Tile& next, Format format) {
    load_keys(block, tile.keys, next.keys, format);
    score(block, first);
    for (int row = first; row < block.rows; row++) {
        weigh(block, row, visible[row], mask == nullptr ? nullptr : mask + row * KEYS);
    }
    load_values(block, tile.values, next.values, format);
    add_values(block, first, visible);
}

/// Divides a row by the sum of its weights and rounds it; zero if it saw no key.
inline void finish_row(const AttentionBlock& block, int row, void* to, int64_t offset,
                       Format format) {
    const float total = sum(load_bits<Floats>(block.sums + row * LANES));
    const float* out = block.out + row * block.width;
    for (int64_t d = 0; d < block.D; d += LANES) {
        const int count = static_cast<int>(block.D - d < LANES ? block.D - d : LANES);
        const Floats x = total == 0 ? Floats{} : load_bits<Floats>(out + d) / total;
        store(to, offset + d, format, x, count);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
