// Tiles of keys and values, on their way from memory into the L1 cache: values as float32, keys
// too, or where the machine multiplies pairs of bfloat16 numbers, as they are.
#pragma once

#include "common/simd_transpose.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEYS = ATTENTION_TILE;

/// Addresses of up to KEYS rows of D elements.
struct Rows {
    const void* at[KEYS];
    int count;
};

struct Tile {
    Rows keys, values;
};

inline int64_t rounded_up(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

inline int64_t bytes_of(int64_t D, Format format) {
    return D * (format == Format::float32 ? 4 : 2);
}

/// Whether scores are sums over pairs of numbers, as they lie in memory.
inline bool in_pairs(Format format) { return MULTIPLIES_PAIRS && format == Format::bfloat16; }

/// How many numbers, or pairs of them, a score adds up.
inline int score_steps(int64_t D, Format format) {
    return static_cast<int>(in_pairs(format) ? (D + 1) / 2 : D);
}

inline const void* element(const void* row, int64_t d, Format format) {
    return static_cast<const char*>(row) + bytes_of(d, format);
}

/// `to` gets keys and values of `from` until it has `count`, or `from` has no more.
inline void append(Tile& to, const Tile& from, int count) {
    for (int i = 0; i < from.keys.count && to.keys.count < count; i++) {
        to.keys.at[to.keys.count++] = from.keys.at[i];
        to.values.at[to.values.count++] = from.values.at[i];
    }
}

/// Fetches rows of a later tile into the L2 cache while this one is worked on, a little at a time:
/// a core waits for at most about 16 lines at once, and stands still when it is asked for more.
class Ahead {
   public:
    Ahead(const Tile& later, int64_t row_bytes)
        : later_(later), rows_(later.keys.count + later.values.count), row_bytes_(row_bytes) {}

    /// Asks for what is still missing of a part of the rows: from 0 to 1, or more for all.
    void fetch(float part) {
        const int end = static_cast<int>(part * static_cast<float>(rows_));
        while (done_ < end && done_ < rows_) {
            fetch_row();
        }
    }

    /// Asks for one row more: called often enough, memory and arithmetic need not take turns.
    void fetch_row() {
        if (done_ < rows_) {
            const Rows& rows = done_ % 2 == 0 ? later_.keys : later_.values;
            const void* row = rows.at[done_ / 2];
            for (int64_t byte = 0; byte < row_bytes_; byte += 64) {
                __builtin_prefetch(static_cast<const char*>(row) + byte, 0, 2);
            }
            done_++;
        }
    }

   private:
    const Tile& later_;
    const int rows_;  // of keys and of values, in turns: memory serves two places at once faster
    int64_t row_bytes_;
    int done_ = 0;
};

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

// The same of up to 2·LANES columns of bfloat16. Two neighbours are moved as one 32-bit word, which
// needs half the shuffles, and taken apart afterwards unless they are multiplied as a pair.
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
        if (MULTIPLIES_PAIRS) {
            if (2 * i < count) {
                store(to, i * KEYS, Format::float32, x[i]);
            }
            continue;
        }
        if (2 * i < count) {
            store(to, 2 * i * KEYS, Format::float32, as_floats(pairs << 16));
        }
        if (2 * i + 1 < count) {
            store(to, (2 * i + 1) * KEYS, Format::float32, as_floats(pairs & ~0xffff));
        }
    }
}

/// keys = the rows, transposed: score_steps × KEYS. Columns beyond the last row repeat it, up to a
/// vector.
inline void load_keys(const Rows& rows, int64_t D, Format format, float* keys, Ahead& ahead) {
    const int64_t step = format == Format::bfloat16 ? 2 * LANES : LANES;
    for (int first = 0; first < rows.count; first += LANES) {
        const void* from[LANES];
        for (int i = 0; i < LANES; i++) {
            from[i] = rows.at[first + i < rows.count ? first + i : rows.count - 1];
        }
        for (int64_t d = 0; d < D; d += step) {
            const int count = static_cast<int>(D - d < step ? D - d : step);
            float* to = keys + score_steps(d, format) * KEYS + first;
            if (format == Format::bfloat16) {
                transpose_column_pairs(from, d, count, to);
            } else {
                transpose_columns(from, d, count, format, to);
            }
            const float columns = static_cast<float>(d + count) / static_cast<float>(D);
            ahead.fetch(0.3f * (static_cast<float>(first) + columns * LANES) / KEYS);
        }
    }
}

/// values = the rows, as float32, zero beyond D: count × width.
inline void load_values(const Rows& rows, int64_t D, Format format, float* values, Ahead& ahead) {
    for (int row = 0; row < rows.count; row++) {
        float* to = values + row * rounded_up(D);
        int64_t d = 0;
        for (; d + LANES <= D; d += LANES) {
            store(to, d, Format::float32, load(rows.at[row], d, format));
        }
        if (d < D) {
            store(to, d, Format::float32, load(rows.at[row], d, format, static_cast<int>(D - d)));
        }
        ahead.fetch(0.5f + 0.3f * static_cast<float>(row + 1) / KEYS);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
