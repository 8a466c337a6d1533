// Tiles of keys and values, on their way from memory into the L1 cache: values as float32, keys
// too, or where the machine multiplies pairs of bfloat16 numbers, as they are.
#pragma once

#include "common/simd_transpose.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

constexpr int KEYS = ATTENTION_TILE;

/// Addresses of up to KEYS keys and of their values, rows of D elements.
struct Tile {
    int count = 0;
    const void* keys[KEYS];
    const void* values[KEYS];
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

/// A tile of the keys before `end`, from `first` on; an empty one if there are none.
///
/// source: knows where a head's keys and values are. Its find_keys(first, count, rows) writes the
///   addresses of `count` keys from `first` on, and find_values those of their values.
template <typename Source>
__attribute__((noinline)) void find_tile(const Source& source, int64_t first, int64_t end,
                                         Tile& tile) {
    const int64_t left = end - first;
    tile.count = static_cast<int>(left < 0 ? 0 : left < KEYS ? left : KEYS);
    source.find_keys(first, tile.count, tile.keys);
    source.find_values(first, tile.count, tile.values);
}

/// Fetches rows of later tiles into the caches while one is worked on, a little at a time: a core
/// waits for a few dozen lines at once, and when it is asked for more it stands still, or forgets.
class Ahead {
   public:
    /// Rows of `next` and then of `after` will be fetched, as many as `tile` has: so memory has an
    /// even load, also where a tile is not full, and where one head ends and another begins.
    Ahead(const Tile& tile, const Tile& next, const Tile& after, int64_t row_bytes)
        : tile_(tile), next_(next), after_(after), row_bytes_(row_bytes) {
        const int later = next.count + after.count;
        rows_ = 2 * (later < tile.count ? later : tile.count);
    }

    /// Asks for what is still missing of a part of the rows: from 0 to 1, or more for all.
    void fetch(float part) {
        const int end = static_cast<int>(part * static_cast<float>(rows_));
        while (done_ < end && done_ < rows_) {
            fetch_row();
        }
    }

    /// Asks for one row more, and once more for a row that is needed soon: of the first requests
    /// some are lost. Called often enough, memory and arithmetic need not take turns.
    void fetch_and_remind() {
        if (done_ < rows_) {
            fetch_row();
        }
        remind();
    }

   private:
    static constexpr int SOON = 24;  // rows; a few KB, which do not drive each other out of L1

    // Keys and values in turns: memory serves two places at once faster.
    void fetch_row() {
        const int i = done_ / 2, beyond = i - next_.count;
        const Tile& tile = beyond < 0 ? next_ : after_;
        const auto& rows = done_ % 2 == 0 ? tile.keys : tile.values;
        request<2>(rows[beyond < 0 ? i : beyond]);
        done_++;
    }

    // Rows in the order of their use: the keys of a tile, its values, the keys of the next.
    void remind() {
        const int count = tile_.count, i = reminded_++;
        if (i < count) {
            request<3>(tile_.keys[i]);
        } else if (i < 2 * count) {
            request<3>(tile_.values[i - count]);
        } else if (i - 2 * count < next_.count) {
            request<3>(next_.keys[i - 2 * count]);
        }
    }

    // LOCALITY 3: into the L1 cache; 2: into L2.
    template <int LOCALITY>
    __attribute__((always_inline)) void request(const void* row) {
        for (int64_t byte = 0; byte < row_bytes_; byte += 64) {
            __builtin_prefetch(static_cast<const char*>(row) + byte, 0, LOCALITY);
        }
    }

    const Tile &tile_, &next_, &after_;
    const int64_t row_bytes_;
    int rows_;
    int done_ = 0;
    int reminded_ = SOON;
};

namespace {

// How many columns of keys are transposed at once. Two neighbours of bfloat16 are moved as one
// 32-bit word, which needs half the shuffles.
template <Format FORMAT>
constexpr int COLUMNS = FORMAT == Format::bfloat16 ? 2 * LANES : LANES;

// x = `count` columns of LANES keys from column d on, a vector each; of bfloat16 two, as 32-bit
// words.
template <Format FORMAT>
__attribute__((always_inline)) inline void load_transposed(const void* const* keys, int64_t d,
                                                           auto count, Floats* x) {
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if constexpr (FORMAT == Format::bfloat16) {
            const void* from = element(keys[i], d, FORMAT);
            x[i] = count == COLUMNS<FORMAT> ? load_bits<Floats>(from)
                                            : load_bits<Floats>(from, count, 2);
        } else {
            x[i] = count == COLUMNS<FORMAT> ? load(keys[i], d, FORMAT)
                                            : load(keys[i], d, FORMAT, count);
        }
    }
    transpose(x);
}

// `to` = columns d … d + count − 1 of LANES rows, transposed: rows of LANES, KEYS apart. Pairs of
// bfloat16 are taken apart, unless they are multiplied as pairs.
template <Format FORMAT>
__attribute__((noinline)) void transpose_columns(const void* const* rows, int64_t d, int count,
                                                 float* to) {
    Floats x[LANES];
    load_transposed<FORMAT>(rows, d, count, x);
    const auto put = [&](int column, Floats keys) {
        store(to, column * KEYS, Format::float32, keys);
    };
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) {
        if (FORMAT != Format::bfloat16) {
            if (i < count) {
                put(i, x[i]);
            }
        } else if (MULTIPLIES_PAIRS) {
            if (2 * i < count) {
                put(i, x[i]);
            }
        } else {
            if (2 * i < count) {
                put(2 * i, as_floats(as_ints(x[i]) << 16));
            }
            if (2 * i + 1 < count) {
                put(2 * i + 1, as_floats(as_ints(x[i]) & ~0xffff));
            }
        }
    }
}

/// keys = the tile's, transposed: score_steps × KEYS. Columns beyond the last key repeat it, up to
/// a vector.
inline void load_keys(const Tile& tile, int64_t D, Format format, float* keys, Ahead& ahead) {
    const bool narrow = format == Format::bfloat16;
    const int64_t step = narrow ? COLUMNS<Format::bfloat16> : COLUMNS<Format::float32>;
    const auto transpose_some = narrow                      ? transpose_columns<Format::bfloat16>
                                : format == Format::float16 ? transpose_columns<Format::float16>
                                                            : transpose_columns<Format::float32>;
    for (int first = 0; first < tile.count; first += LANES) {
        const void* from[LANES];
        for (int i = 0; i < LANES; i++) {
            from[i] = tile.keys[first + i < tile.count ? first + i : tile.count - 1];
        }
        for (int64_t d = 0; d < D; d += step) {
            const int count = static_cast<int>(D - d < step ? D - d : step);
            transpose_some(from, d, count, keys + score_steps(d, format) * KEYS + first);
            const float columns = static_cast<float>(d + count) / static_cast<float>(D);
            ahead.fetch(0.3f * (static_cast<float>(first) + columns * LANES) / KEYS);
        }
    }
}

/// values = the tile's, as float32, zero beyond D: count × width.
inline void load_values(const Tile& tile, int64_t D, Format format, float* values, Ahead& ahead) {
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
        ahead.fetch(0.5f + 0.3f * static_cast<float>(row + 1) / KEYS);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
