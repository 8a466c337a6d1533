// A block of query rows attends to one tile: scores, online softmax, weighted values.
//
// A separate file because it takes long to compile, and because flash and paged attention share it:
// they differ only in the source of tiles.
#include "common/simd_matmul.h"
#include "src/flash_attention/fast/attention_block.h"
#include "src/flash_attention/fast/attention_few_rows.h"
#include "src/flash_attention/fast/attention_softmax.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// The softmax of rows ≥ `first`.
inline void softmax_rows(const AttentionBlock& block, int first, const int* visible,
                         const int* hidden, const float* mask, const Tile& tile) {
    const Softmax softmax(block, visible, hidden, mask, tile);
    for (int row = first; row < block.rows; row++) {
        softmax.run(row);
    }
}

// --- a tile -------------------------------------------------------------------------------------

// With few rows, memory would idle during the matmuls, so their inner dimension is split into
// slices of this size, each followed by some prefetches. With many rows, one prefetch pass
// suffices.
constexpr int SLICE = 16;

inline int slice_size(int rows, int inner) { return rows <= MATMUL_ROWS ? SLICE : inner; }

/// scores = query · keys, for rows ≥ `first`.
template <typename Element>
inline void score(const AttentionBlock& block, int first, Prefetcher& prefetcher) {
    const int rows = block.rows - first, steps = score_steps(block.D, block.kv_format);
    const auto query = (const Element*)(block.query + first * block.width);
    const auto keys = (const Element*)block.keys;
    float* scores = block.scores + first * KEYS;
    for (int64_t i = 0; i < static_cast<int64_t>(rows) * KEYS; i++) {
        scores[i] = 0;
    }
    const int slice = slice_size(rows, steps);
    for (int i = 0; i < steps; i += slice) {
        multiply_add(rows, KEYS, steps - i < slice ? steps - i : slice, query + i, block.width,
                     keys + i * KEYS, KEYS, scores, KEYS);
        prefetcher.prefetch_until(0.3f +
                                  0.2f * static_cast<float>(i + slice) / static_cast<float>(steps));
    }
}

/// out += weights · values, for rows ≥ `first` and the first visible[row] keys of the tile; visible
/// is non-decreasing.
///
/// Rows share the values visible to all of them; the remainder is per row. A hidden key is skipped,
/// not multiplied by zero, which would be NaN for an infinite value.
inline void add_values(const AttentionBlock& block, int first, const int* visible,
                       Prefetcher& prefetcher) {
    const int columns = static_cast<int>(block.width);
    auto add = [&](int row, int rows, int from, int to) {
        multiply_add(rows, columns, to - from, block.scores + row * KEYS + from, KEYS,
                     block.values + from * block.width, block.width, block.out + row * block.width,
                     block.width);
    };
    const int slice = slice_size(block.rows - first, KEYS);
    for (int row = first; row < block.rows; row += MATMUL_ROWS) {
        const int tile_rows = block.rows - row < MATMUL_ROWS ? block.rows - row : MATMUL_ROWS;
        const int shared = visible[row];
        for (int key = 0; key < shared; key += slice) {
            add(row, tile_rows, key, shared - key < slice ? shared : key + slice);
            prefetcher.prefetch_until(0.8f + 0.2f * static_cast<float>(key + slice) / KEYS);
        }
        for (int own = row + 1; own < row + tile_rows; own++) {
            add(own, 1, shared, visible[own]);
        }
    }
}

/// out += weights · values, row by row, for keys hidden[row] … visible[row] − 1 of a tile that
/// begins before some row's window.
__attribute__((noinline)) void add_values_in_window(const AttentionBlock& block, int first,
                                                    const int* visible, const int* hidden,
                                                    Prefetcher& prefetcher) {
    const int columns = static_cast<int>(block.width);
    prefetcher.prefetch_until(1);
    for (int row = first; row < block.rows; row++) {
        const int from = hidden[row];
        if (from < visible[row]) {
            multiply_add(1, columns, visible[row] - from, block.scores + row * KEYS + from, KEYS,
                         block.values + from * block.width, block.width,
                         block.out + row * block.width, block.width);
        }
    }
}

/// Accumulates attention of the last ROWS rows of the block, from `first` on, over a tile, without
/// storing keys and values as float32.
template <int ROWS, Format FORMAT>
void attend_few(const AttentionBlock& block, int first, const int* visible, const int* hidden,
                const float* mask, const Tile& tile, Prefetcher& prefetcher) {
    const int64_t D = block.D, width = block.width;
    float* scores = block.scores + first * KEYS;
    float* out = block.out + first * width;
    for (int key = 0; key < tile.count; key += SCORE_KEYS) {
        const void* keys[SCORE_KEYS];
        for (int i = 0; i < SCORE_KEYS; i++) {
            keys[i] = tile.keys[key + i < tile.count ? key + i : tile.count - 1];
        }
        score_few<ROWS, FORMAT>(keys, block.query + first * width, D, scores + key, prefetcher);
    }
    softmax_rows(block, first, visible, hidden, mask, tile);
    const auto add_row = [&](int row, int from) {
        add_values_few<1, FORMAT>(scores + row * KEYS, tile.values, from, visible[first + row], D,
                                  out + row * width, width, prefetcher);
    };
    const int shared = visible[first];
    if (hidden == nullptr) {
        add_values_few<ROWS, FORMAT>(scores, tile.values, 0, shared, D, out, width, prefetcher);
    } else {
        add_row(0, hidden[first]);
    }
    for (int row = 1; row < ROWS; row++) {
        add_row(row, hidden == nullptr ? shared : hidden[first + row]);
    }
    prefetcher.prefetch_until(1);
}

template <Format FORMAT>
void attend_few(const AttentionBlock& block, int first, const int* visible, const int* hidden,
                const float* mask, const Tile& tile, Prefetcher& prefetcher) {
    switch (block.rows - first) {
        case 1:
            return attend_few<1, FORMAT>(block, first, visible, hidden, mask, tile, prefetcher);
        case 2:
            return attend_few<2, FORMAT>(block, first, visible, hidden, mask, tile, prefetcher);
        case 3:
            return attend_few<3, FORMAT>(block, first, visible, hidden, mask, tile, prefetcher);
        default:
            static_assert(FEW_ROWS == 4);
            return attend_few<4, FORMAT>(block, first, visible, hidden, mask, tile, prefetcher);
    }
}

}  // namespace

void attend(const AttentionBlock& block, int first, const int* visible, const int* hidden,
            const float* mask, const Tile& tile, Prefetcher& prefetcher) {
    const Format format = block.kv_format;
    if (block.rows - first <= FEW_ROWS) {
        switch (format) {
            case Format::float32:
                return attend_few<Format::float32>(block, first, visible, hidden, mask, tile,
                                                   prefetcher);
            case Format::float16:
                return attend_few<Format::float16>(block, first, visible, hidden, mask, tile,
                                                   prefetcher);
            case Format::int8:
                return attend_few<Format::int8>(block, first, visible, hidden, mask, tile,
                                                prefetcher);
            default:
                return attend_few<Format::bfloat16>(block, first, visible, hidden, mask, tile,
                                                    prefetcher);
        }
    }
    load_keys(tile, block.D, format, block.keys, prefetcher);
    if constexpr (USES_BF16_DOT) {
        uses_bf16_dot(format) ? score<int32_t>(block, first, prefetcher)
                              : score<float>(block, first, prefetcher);
    } else {
        score<float>(block, first, prefetcher);
    }
    softmax_rows(block, first, visible, hidden, mask, tile);
    load_values(tile, block.D, format, block.values, prefetcher);
    if (hidden == nullptr) {
        add_values(block, first, visible, prefetcher);
    } else {
        add_values_in_window(block, first, visible, hidden, prefetcher);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
