// Loading of key and value tiles into the L1 cache as float32, except that bfloat16 keys stay
// bfloat16 where the instruction set has fast bfloat16 dot products.
#pragma once

#if defined(__AMX_BF16__)
#include "common/amx.h"
#endif
#include "common/int8_rows.h"
#include "common/simd_transpose.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

constexpr int KEYS = ATTENTION_TILE;

/// Maximum number of query rows for which neither keys nor values are converted in memory first.
constexpr int FEW_ROWS = 4;

/// Addresses of up to KEYS keys and of their values: rows of D elements.
struct Tile {
    int count = 0;
    const void* keys[KEYS];
    const void* values[KEYS];
};

// AMX multiplies complete matrices in its registers, so sizes are padded; see
// attention_block_amx.cpp.
#if defined(__AMX_BF16__)
constexpr bool USES_AMX = true;
constexpr int ROWS_MULTIPLE = TILE_SIDE;         // of query rows
constexpr int COLUMNS_MULTIPLE = 2 * TILE_SIDE;  // of columns of `out`
constexpr int STEPS_MULTIPLE = TILE_SIDE;        // of pairs of elements per score
static_assert(COLUMNS_MULTIPLE == 2 * STEPS_MULTIPLE);
#else
constexpr bool USES_AMX = false;
constexpr int ROWS_MULTIPLE = 1, COLUMNS_MULTIPLE = LANES, STEPS_MULTIPLE = 1;
#endif

inline int64_t padded(int64_t n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int64_t rounded_up(int64_t n) { return padded(n, LANES); }

/// Whether scores are computed with a bfloat16 dot-product instruction, on pairs of adjacent
/// elements. AMX kernels run only for bfloat16 queries; 8-bit keys are exact in bfloat16.
inline bool uses_bf16_dot(Format kv_format) {
    return USES_AMX || (USES_BF16_DOT && kv_format == Format::bfloat16);
}

/// Multiply-add steps per score: one per element, or one per pair of bfloat16 elements.
inline int score_steps(int64_t D, Format kv_format) {
    return static_cast<int>(uses_bf16_dot(kv_format) ? padded((D + 1) / 2, STEPS_MULTIPLE) : D);
}

inline const void* element(const void* row, int64_t d, Format format) {
    return static_cast<const char*>(row) + d * item_bytes(format);
}

/// Tile of the keys first … end − 1; empty if first ≥ end.
///
/// source: locates a head's keys and values. find_rows(first, tile) writes the addresses of
///   tile.count keys, starting at `first`, and of their values.
template <typename Source>
__attribute__((noinline)) void find_tile(const Source& source, int64_t first, int64_t end,
                                         Tile& tile) {
    const int64_t left = end - first;
    tile.count = static_cast<int>(left < 0 ? 0 : left < KEYS ? left : KEYS);
    source.find_rows(first, tile);
}

/// Writes `count` addresses, the first `row`, each `step` bytes after the previous one.
inline void write_addresses(const void* row, int64_t step, int count, const void** out) {
    for (int i = 0; i < count; i++) {
        out[i] = static_cast<const char*>(row) + i * step;
    }
}

/// Prefetches rows of later tiles a little at a time while a tile is computed, because a core
/// tracks only a few dozen outstanding cache lines; with more, it stalls or drops prefetches.
class Prefetcher {
   public:
    /// Prefetches rows of `next` and then of `after` during `tile`: as many rows as `tile` has, for
    /// constant memory traffic even at partial tiles and head boundaries.
    Prefetcher(const Tile& tile, const Tile& next, const Tile& after, int64_t row_bytes)
        : tile_(tile), next_(next), after_(after), row_bytes_(row_bytes) {
        const int later = next.count + after.count;
        rows_ = 2 * (later < tile.count ? later : tile.count);
    }

    /// Prefetches rows up to a fraction `part` of all rows; all of them if part ≥ 1.
    void prefetch_until(float part) {
        const int end = static_cast<int>(part * static_cast<float>(rows_));
        while (done_ < end && done_ < rows_) {
            prefetch_row();
        }
    }

    /// Prefetches the next row. Without AMX, also repeats the prefetch of a row needed soon, since
    /// some early ones are dropped; with AMX, repeating costs more than it saves. Call it often, so
    /// that memory accesses and arithmetic overlap.
    void prefetch_next() {
        if (done_ < rows_) {
            prefetch_row();
        }
        if constexpr (!USES_AMX) {
            repeat_prefetch();
        }
    }

   private:
    static constexpr int LOOKAHEAD = 24;  // in rows: a few KiB, which fit in L1

    // Prefetches the next row. Alternates keys and values, because memory serves two streams faster
    // than one.
    void prefetch_row() {
        const int i = done_ / 2, beyond = i - next_.count;
        const Tile& tile = beyond < 0 ? next_ : after_;
        const auto& rows = done_ % 2 == 0 ? tile.keys : tile.values;
        prefetch_lines<2>(rows[beyond < 0 ? i : beyond]);
        done_++;
    }

    // Prefetches a row again. Rows are repeated in order of use: the tile's keys, its values, then
    // the next tile's keys.
    void repeat_prefetch() {
        const int count = tile_.count, i = repeated_++;
        if (i < count) {
            prefetch_lines<3>(tile_.keys[i]);
        } else if (i < 2 * count) {
            prefetch_lines<3>(tile_.values[i - count]);
        } else if (i - 2 * count < next_.count) {
            prefetch_lines<3>(next_.keys[i - 2 * count]);
        }
    }

    // LOCALITY 3: into L1; 2: into L2.
    template <int LOCALITY>
    __attribute__((always_inline)) void prefetch_lines(const void* row) {
        for (int64_t byte = 0; byte < row_bytes_; byte += 64) {
            __builtin_prefetch(static_cast<const char*>(row) + byte, 0, LOCALITY);
        }
    }

    const Tile &tile_, &next_, &after_;
    const int64_t row_bytes_;
    int rows_;
    int done_ = 0;
    int repeated_ = LOOKAHEAD;
};

namespace {

// Compile-time integer: a loop with a count of this type needs no branches at run time.
template <int N>
struct Constant {
    constexpr operator int() const { return N; }
};

// Number of adjacent elements that are transposed together as one 32-bit lane, to save shuffles.
// float16 elements are converted to float32 first.
template <Format FORMAT>
constexpr int ELEMENTS_PER_LANE = FORMAT == Format::bfloat16 ? 2
                                  : FORMAT == Format::int8   ? 4
                                                             : 1;

// Number of columns (elements of a head) that one transposition of keys covers.
template <Format FORMAT>
constexpr int KEY_COLUMNS = ELEMENTS_PER_LANE<FORMAT> * LANES;

// Element k of each 32-bit lane, as float32.
template <Format FORMAT>
inline Floats lane_element(Floats words, int k) {
    const Ints bits = as_ints(words);
    switch (FORMAT) {
        case Format::bfloat16:
            return as_floats(k == 0 ? bits << 16 : bits & ~0xffff);
        case Format::int8:
            return __builtin_convertvector((bits << (24 - 8 * k)) >> 24, Floats);
        default:
            return words;
    }
}

// Loads `count` columns of LANES keys starting at column d, ELEMENTS_PER_LANE columns per vector.
template <Format FORMAT>
__attribute__((always_inline)) inline void load_transposed(const void* const* keys, int64_t d,
                                                           auto count, Floats* x) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if constexpr (ELEMENTS_PER_LANE<FORMAT> > 1) {
            const void* from = element(keys[i], d, FORMAT);
            x[i] = count == KEY_COLUMNS<FORMAT>
                       ? load_bits<Floats>(from)
                       : load_bits<Floats>(from, count, 4 / ELEMENTS_PER_LANE<FORMAT>);
        } else {
            x[i] = count == KEY_COLUMNS<FORMAT> ? load(keys[i], d, FORMAT)
                                                : load(keys[i], d, FORMAT, count);
        }
    }
    transpose(x);
}

// to = columns d … d + count − 1 of LANES rows, transposed: each column becomes LANES floats, KEYS
// after the previous one. The elements of a 32-bit lane are separated, unless they are multiplied
// as pairs.
template <Format FORMAT>
__attribute__((noinline)) void transpose_columns(const void* const* rows, int64_t d, int count,
                                                 float* to) {
    Floats x[LANES];
    load_transposed<FORMAT>(rows, d, count, x);
    const auto store_column = [&](int column, Floats keys) {
        store(to, column * KEYS, Format::float32, keys);
    };
    if constexpr (FORMAT == Format::bfloat16 && USES_BF16_DOT) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (2 * i < padded(count, 2 * STEPS_MULTIPLE)) {
                store_column(i, x[i]);
            }
        }
    } else if constexpr (FORMAT == Format::int8 && USES_AMX) {
#pragma GCC unroll 64
        for (int i = 0; i < KEY_COLUMNS<FORMAT> / 2; i++) {
            if (2 * i < padded(count, 2 * STEPS_MULTIPLE)) {
                const Ints first = as_ints(lane_element<FORMAT>(x[i / 2], i % 2 * 2));
                const Ints second = as_ints(lane_element<FORMAT>(x[i / 2], i % 2 * 2 + 1));
                store_column(i, as_floats((first >> 16 & 0xffff) | second));
            }
        }
    } else {
#pragma GCC unroll 64
        for (int column = 0; column < KEY_COLUMNS<FORMAT>; column++) {
            if (column < count) {
                constexpr int per_lane = ELEMENTS_PER_LANE<FORMAT>;
                store_column(column, lane_element<FORMAT>(x[column / per_lane], column % per_lane));
            }
        }
    }
}

/// keys = the tile's keys, transposed: score_steps × KEYS. Columns beyond the last key repeat it,
/// up to a full vector.
inline void load_keys(const Tile& tile, int64_t D, Format format, float* keys,
                      Prefetcher& prefetcher) {
    int64_t step = LANES;
    auto transpose_some = transpose_columns<Format::float32>;
    if (format == Format::float16) {
        transpose_some = transpose_columns<Format::float16>;
    } else if (format == Format::bfloat16) {
        step = KEY_COLUMNS<Format::bfloat16>;
        transpose_some = transpose_columns<Format::bfloat16>;
    } else if (format == Format::int8) {
        step = KEY_COLUMNS<Format::int8>;
        transpose_some = transpose_columns<Format::int8>;
    }
    for (int first = 0; first < tile.count; first += LANES) {
        const void* from[LANES];
        for (int i = 0; i < LANES; i++) {
            from[i] = tile.keys[first + i < tile.count ? first + i : tile.count - 1];
        }
        for (int64_t d = 0; d < D; d += step) {
            const int count = static_cast<int>(D - d < step ? D - d : step);
            transpose_some(from, d, count, keys + score_steps(d, format) * KEYS + first);
            const float columns = static_cast<float>(d + count) / static_cast<float>(D);
            prefetcher.prefetch_until(0.3f * (static_cast<float>(first) + columns * LANES) / KEYS);
        }
    }
}

/// values = the tile's values as float32, zero beyond D: count × width.
inline void load_values(const Tile& tile, int64_t D, Format format, float* values,
                        Prefetcher& prefetcher) {
    for (int row = 0; row < tile.count; row++) {
        const void* from = tile.values[row];
        float* to = values + row * rounded_up(D);
        int64_t d = 0;
        for (; d + LANES <= D; d += LANES) {
            store(to, d, Format::float32, load(from, d, format));
        }
        if (d < D) {
            store(to, d, Format::float32, load(from, d, format, static_cast<int>(D - d)));
        }
        prefetcher.prefetch_until(0.5f + 0.3f * static_cast<float>(row + 1) / KEYS);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
