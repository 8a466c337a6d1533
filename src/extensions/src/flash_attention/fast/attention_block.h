// A block of query rows attends to keys and values, tile by tile: the inside of flash attention.
//
// It does not know where tiles come from: its caller hands over 64 addresses at a time, of
// rows in one buffer or in pages. Both matrix products of a tile are one function: scores += query
// · keys (with the keys transposed) and out += weights · values. A sum is never split over lanes;
// it grows in the order of its index, whatever rows are computed beside it.
#pragma once

#include "common/simd_matmul.h"
#include "src/flash_attention/fast/attention_few_rows.h"
#include "src/flash_attention/fast/attention_tile.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEY_VECTORS = KEYS / LANES;

/// The state of a block of query rows, and room for the tile at hand. All in one piece of scratch.
struct AttentionBlock {
    int rows;
    int64_t D;
    int64_t width;   // D, rounded up to whole vectors
    float* scores;   // rows × KEYS; then the weights
    float* out;      // rows × width, not yet divided by sums
    float* keys;     // score_steps × KEYS, and in the same place once the scores are known,
    float* values;   // KEYS × width: together they would not fit in the L1 cache
    float* sums;     // rows × LANES: of the weights, lane by lane
    float* largest;  // rows: the largest score so far
    float* query;    // rows × D numbers, or half as many pairs
    float scale;     // of the scores
    Format format;   // of query, keys and values
};

/// Floats of scratch that a block needs.
inline int64_t block_scratch(int rows, int64_t D) {
    const int64_t width = rounded_up(D);
    return rows * (KEYS + width + LANES + D) + rounded_up(rows) + KEYS * width;
}

/// A block that has seen no keys. `query` has to be filled in.
inline AttentionBlock make_block(int rows, int64_t D, float scale, Format format, float* scratch) {
    AttentionBlock block;
    auto take = [&](int64_t floats) {
        float* taken = scratch;
        scratch += floats;
        return taken;
    };
    block.rows = rows;
    block.D = D;
    block.width = rounded_up(D);
    block.scale = scale;
    block.format = format;
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

/// Turns a row's scores, times scale, into weights exp(score − largest), zero from key `visible`
/// on.
///
/// `mask` is null, or has KEYS numbers to add; −inf hides a key whatever its score.
inline void weigh(const AttentionBlock& block, int row, int visible, const float* mask) {
    const Floats hidden = splat(-__builtin_inff());
    float* scores = block.scores + row * KEYS;
    const float before = block.largest[row];
    Floats x[KEY_VECTORS];
    Floats most = splat(before);
    for (int v = 0; v < KEY_VECTORS; v++) {
        x[v] = load_bits<Floats>(scores + v * LANES) * block.scale;
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
        rescale(block, row, exp_of_negative(splat(before) - base)[0]);
        block.largest[row] = largest;
    }
    float* sums = block.sums + row * LANES;
    Floats total = load_bits<Floats>(sums);
    for (int v = 0; v < KEY_VECTORS; v++) {
        const Floats weights = exp_of_negative(x[v] - base);
        total = total + weights;
        store(scores, v * LANES, Format::float32, weights);
    }
    store(sums, 0, Format::float32, total);
}

// --- a tile -------------------------------------------------------------------------------------

// A few rows leave the memory idle while they are multiplied, so their products are cut into slices
// of this many steps, with some prefetching after each. Many rows have time enough for it all.
constexpr int SLICE = 16;

inline int slice_of(int rows, int inner) { return rows <= MATMUL_ROWS ? SLICE : inner; }

/// scores of rows from `first` on = query · keys.
template <typename Number>
inline void score(const AttentionBlock& block, int first, Ahead& ahead) {
    const int rows = block.rows - first, steps = score_steps(block.D, block.format);
    const auto query = (const Number*)(block.query + first * block.D);
    const auto keys = (const Number*)block.keys;
    float* scores = block.scores + first * KEYS;
    for (int64_t i = 0; i < static_cast<int64_t>(rows) * KEYS; i++) {
        scores[i] = 0;
    }
    const int slice = slice_of(rows, steps);
    for (int i = 0; i < steps; i += slice) {
        multiply_add(rows, KEYS, steps - i < slice ? steps - i : slice, query + i, block.D,
                     keys + i * KEYS, KEYS, scores, KEYS);
        ahead.fetch(0.3f + 0.2f * static_cast<float>(i + slice) / static_cast<float>(steps));
    }
}

/// out of rows from `first` on += weights · values, for the first visible[row] keys of the tile;
/// visible does not fall from row to row.
///
/// Several rows share the values that all of them see; the rest is each row's own. So a key that a
/// row may not see is not multiplied by zero, which would be NaN for an infinite value.
inline void add_values(const AttentionBlock& block, int first, const int* visible, Ahead& ahead) {
    const int columns = static_cast<int>(block.width);
    auto add = [&](int row, int rows, int from, int to) {
        multiply_add(rows, columns, to - from, block.scores + row * KEYS + from, KEYS,
                     block.values + from * block.width, block.width, block.out + row * block.width,
                     block.width);
    };
    const int slice = slice_of(block.rows - first, KEYS);
    for (int row = first; row < block.rows; row += MATMUL_ROWS) {
        const int together = block.rows - row < MATMUL_ROWS ? block.rows - row : MATMUL_ROWS;
        const int shared = visible[row];
        for (int key = 0; key < shared; key += slice) {
            add(row, together, key, shared - key < slice ? shared : key + slice);
            ahead.fetch(0.8f + 0.2f * static_cast<float>(key + slice) / KEYS);
        }
        for (int own = row + 1; own < row + together; own++) {
            add(own, 1, shared, visible[own]);
        }
    }
}

/// ROWS rows from `first` on, the last of the block, attend to a tile: nothing is stored in
/// between.
template <int ROWS, Format FORMAT>
void attend_few(const AttentionBlock& block, int first, const int* visible, const float* mask,
                const Tile& tile, Ahead& ahead) {
    const int64_t D = block.D, width = block.width;
    float* scores = block.scores + first * KEYS;
    float* out = block.out + first * width;
    for (int key = 0; key < tile.count; key += SCORE_KEYS) {
        const void* keys[SCORE_KEYS];
        for (int i = 0; i < SCORE_KEYS; i++) {
            keys[i] = tile.keys[key + i < tile.count ? key + i : tile.count - 1];
        }
        score_few<ROWS, FORMAT>(keys, block.query + first * D, D, scores + key, ahead);
    }
    for (int row = first; row < block.rows; row++) {
        weigh(block, row, visible[row], mask == nullptr ? nullptr : mask + row * KEYS);
    }
    const int shared = visible[first];
    add_values_few<ROWS, FORMAT>(scores, tile.values, 0, shared, D, out, width, ahead);
    for (int row = 1; row < ROWS; row++) {
        add_values_few<1, FORMAT>(scores + row * KEYS, tile.values, shared, visible[first + row], D,
                                  out + row * width, width, ahead);
    }
    ahead.fetch(1);
}

template <Format FORMAT>
void attend_few(const AttentionBlock& block, int first, const int* visible, const float* mask,
                const Tile& tile, Ahead& ahead) {
    switch (block.rows - first) {
        case 1:
            return attend_few<1, FORMAT>(block, first, visible, mask, tile, ahead);
        case 2:
            return attend_few<2, FORMAT>(block, first, visible, mask, tile, ahead);
        case 3:
            return attend_few<3, FORMAT>(block, first, visible, mask, tile, ahead);
        default:
            static_assert(FEW_ROWS == 4);
            return attend_few<4, FORMAT>(block, first, visible, mask, tile, ahead);
    }
}

/// Rows from `first` on attend to a tile. `mask` is null or rows × KEYS.
inline void attend(const AttentionBlock& block, int first, const int* visible, const float* mask,
                   const Tile& tile, Ahead& ahead) {
    const Format format = block.format;
    if (block.rows - first <= FEW_ROWS) {
        switch (format) {
            case Format::float32:
                return attend_few<Format::float32>(block, first, visible, mask, tile, ahead);
            case Format::float16:
                return attend_few<Format::float16>(block, first, visible, mask, tile, ahead);
            default:
                return attend_few<Format::bfloat16>(block, first, visible, mask, tile, ahead);
        }
    }
    load_keys(tile, block.D, format, block.keys, ahead);
    if constexpr (MULTIPLIES_PAIRS) {
        in_pairs(format) ? score<int32_t>(block, first, ahead) : score<float>(block, first, ahead);
    } else {
        score<float>(block, first, ahead);
    }
    for (int row = first; row < block.rows; row++) {
        weigh(block, row, visible[row], mask == nullptr ? nullptr : mask + row * KEYS);
    }
    load_values(tile, block.D, format, block.values, ahead);
    add_values(block, first, visible, ahead);
}

// --- the whole block ----------------------------------------------------------------------------

/// Row `row` of the block's query = D elements of an array from `from` on.
inline void load_query_row(const AttentionBlock& block, int row, const void* query, int64_t from) {
    float* to = block.query + row * block.D;
    if (in_pairs(block.format)) {
        to[(block.D - 1) / 2] = 0;  // the last number may be alone
        memcpy(to, element(query, from, block.format), bytes_of(block.D, block.format));
        return;
    }
    int64_t d = 0;
    for (; d + LANES <= block.D; d += LANES) {
        store(to, d, Format::float32, load(query, from + d, block.format));
    }
    if (d < block.D) {
        const int count = static_cast<int>(block.D - d);
        store(to, d, Format::float32, load(query, from + d, block.format, count), count);
    }
}

/// The block attends to keys 0 … end − 1.
///
/// visible_keys(row): how many keys a row of the block may see, from the first; it does not fall
///   from row to row, and is at most `end` for the last.
/// tile_at(first, tile): writes addresses of the keys and values from `first` on; from `end` on, as
///   if they followed these, of those that are likely to be needed next, or none.
/// mask: null, or room for rows × KEYS numbers that load_mask(first, count) fills; it returns
///   whether any row sees any of these keys.
template <typename VisibleKeys, typename TileAt, typename LoadMask>
void attend_to_all(const AttentionBlock& block, int64_t end, const VisibleKeys& visible_keys,
                   const TileAt& tile_at, const float* mask, const LoadMask& load_mask) {
    const int64_t distance = end < KEYS ? end : KEYS;
    Tile tiles[2], after;
    tile_at(0, tiles[0]);
    for (int64_t first_key = 0; first_key < end; first_key += KEYS) {
        const int now = first_key / KEYS % 2;
        const Tile& tile = tiles[now];
        Tile& next = tiles[1 - now];
        tile_at(first_key + distance, next);
        after.count = 0;
        if (next.count < tile.count && first_key + distance < end) {
            tile_at(end, after);  // the rest of what is fetched while this tile is worked on
        }
        Ahead ahead(tile, next, after, bytes_of(block.D, block.format));
        if (mask == nullptr || load_mask(first_key, tile.count)) {
            int visible[MAX_BLOCK_ROWS];
            int first = block.rows;  // the first row that sees a key of this tile
            for (int row = block.rows - 1; row >= 0; row--) {
                const int64_t seen = visible_keys(row) - first_key;
                visible[row] = static_cast<int>(seen < 0 ? 0 : seen < KEYS ? seen : KEYS);
                first = visible[row] > 0 ? row : first;
            }
            attend(block, first, visible, mask, tile, ahead);
        }
    }
}

/// Divides a row by the sum of its weights and rounds it; zero if it saw no key.
inline void finish_row(const AttentionBlock& block, int row, void* to, int64_t offset) {
    const float total = sum(load_bits<Floats>(block.sums + row * LANES));
    const float* out = block.out + row * block.width;
    for (int64_t d = 0; d < block.D; d += LANES) {
        const int count = static_cast<int>(block.D - d < LANES ? block.D - d : LANES);
        const Floats x = total == 0 ? Floats{} : load_bits<Floats>(out + d) / total;
        store(to, offset + d, block.format, x, count);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
