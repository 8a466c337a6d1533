// Flash attention's inner loop: a block of query rows attends to keys and values, tile by tile.
//
// Independent of how tiles are stored: the caller passes 64 row addresses at a time, in one buffer
// or in pages. The order of a sum does not depend on the other rows, so neither does a row's
// result.
#pragma once

#include "src/flash_attention/fast/attention_tile.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

/// State of a block of query rows and of its current tile, in one scratch allocation.
struct AttentionBlock {
    int rows;
    int64_t D;
    int64_t width;   // D, rounded up to a multiple of COLUMNS_MULTIPLE
    float* scores;   // rows × KEYS; replaced by the weights
    float* out;      // rows × width, before division by sums
    float* keys;     // score_steps × KEYS
    float* values;   // KEYS × width. Shares memory with keys, because both together exceed L1;
                     // with AMX, KEYS / 2 × width pairs of bfloat16 values after the keys
    float* sums;     // rows × LANES: per-lane sums of the weights
    float* largest;  // rows: running maximum of the scores
    float* query;    // rows of width floats: D elements, or half as many pairs of bfloat16 values;
                     // see also query_columns
    float scale;     // factor of the scores
    Format format;   // format of query and out
    Format kv_format;  // format of keys and values: `format`, or int8
};

/// Scratch size of a block in floats.
inline int64_t block_scratch(int rows, int64_t D) {
    const int64_t width = padded(D, COLUMNS_MULTIPLE);
    return padded(rows, ROWS_MULTIPLE) * (KEYS + 2 * width) + rows * LANES + rounded_up(rows) +
           KEYS * width;
}

/// Initializes the state of a block that has not attended to any key. The caller fills in `query`.
inline AttentionBlock make_block(int rows, int64_t D, float scale, Format format, Format kv_format,
                                 float* scratch) {
    AttentionBlock block;
    auto allocate = [&](int64_t floats) {
        float* allocated = scratch;
        scratch += floats;
        return allocated;
    };
    block.rows = rows;
    block.D = D;
    block.width = padded(D, COLUMNS_MULTIPLE);
    block.scale = scale;
    block.format = format;
    block.kv_format = kv_format;
    const int64_t padded_rows = padded(rows, ROWS_MULTIPLE);
    block.scores = allocate(padded_rows * KEYS);
    block.out = allocate(padded_rows * block.width);
    block.keys = block.values = allocate(KEYS * block.width);
    if (USES_AMX) {  // the keys are KEYS × width / 2 pairs
        block.values += KEYS * block.width / 2;
    }
    block.sums = allocate(static_cast<int64_t>(rows) * LANES);
    block.largest = allocate(rounded_up(rows));
    block.query = allocate(padded_rows * block.width);
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

/// Begins row `row`'s softmax with an attention sink.
inline void set_sink(const AttentionBlock& block, int row, float sink) {
    block.largest[row] = sink;
    block.sums[row * LANES] = 1;
}

/// Accumulates attention of rows ≥ `first` over a tile. Defined in attention_block_simd.cpp and
/// attention_block_amx.cpp.
///
/// visible: per row of the block, number of leading keys of the tile at or before the row's query;
///   non-decreasing. hidden: null, or per row, number of those keys before the row's window;
///   non-decreasing.
/// mask: null, or rows × KEYS values added to the scores.
void attend(const AttentionBlock& block, int first, const int* visible, const int* hidden,
            const float* mask, const Tile& tile, Prefetcher& prefetcher);

// --- attention of a block -----------------------------------------------------------------------

/// Number of columns if query is stored by columns, pairs × columns, as AMX's second operand; 0 if
/// by rows.
inline int query_columns(const AttentionBlock& block) {
    if (!USES_AMX || block.kv_format == Format::int8 || block.rows > ROWS_MULTIPLE) {
        return 0;
    }
    return block.rows <= FEW_ROWS ? FEW_ROWS : ROWS_MULTIPLE;
}

/// Loads row `row` of the block's query: D elements of an array, starting at `from`.
inline void load_query_row(const AttentionBlock& block, int row, const void* query, int64_t from) {
    if (const int columns = query_columns(block)) {
        float pairs[MAX_HEAD_SIZE / 2] = {};  // zero beyond D
        memcpy(pairs, element(query, from, block.format), block.D * item_bytes(block.format));
        for (int64_t pair = 0; pair < block.width / 2; pair++) {
            block.query[pair * columns + row] = pairs[pair];
        }
        return;
    }
    // With AMX, vector instructions multiply a few rows by 8-bit keys.
    const bool has_pairs = uses_bf16_dot(block.kv_format) && !(USES_AMX && block.rows <= FEW_ROWS);
    float* to = block.query + row * block.width;
    for (int64_t d = has_pairs ? block.D / 2 : block.D; d < block.width; d++) {
        to[d] = 0;  // pads the last pair, and rows for AMX
    }
    if (has_pairs) {
        memcpy(to, element(query, from, block.format), block.D * item_bytes(block.format));
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

/// Accumulates attention of the block over keys 0 … end − 1, except those before all rows' windows.
///
/// visible_keys(row): number of leading visible keys of a row; non-decreasing, at most `end`.
/// hidden_keys(row): number of visible keys before the row's window; non-decreasing.
/// tile_at(first, tile): writes the addresses of keys and values from `first` on. For first ≥ end,
///   a prefetch hint: the keys likely to be needed next, or none.
/// mask: null, or rows × KEYS values filled by load_mask(first, count), which returns whether any
///   of these keys is visible to any row.
template <typename VisibleKeys, typename HiddenKeys, typename TileAt, typename LoadMask>
void attend_to_all(const AttentionBlock& block, int64_t end, const VisibleKeys& visible_keys,
                   const HiddenKeys& hidden_keys, const TileAt& tile_at, const float* mask,
                   const LoadMask& load_mask) {
    const int64_t begin = hidden_keys(0) / KEYS * KEYS, most_hidden = hidden_keys(block.rows - 1);
    const int64_t distance = end - begin < KEYS ? end - begin : KEYS;
#if defined(__AMX_BF16__)
    using Shape = TileRegisters::Shape;
    const int queries = query_columns(block);
    const Shape rows = {block.rows < TILE_SIDE ? block.rows : TILE_SIDE, TILE_ROW_BYTES};
    const Shape full = {TILE_SIDE, TILE_ROW_BYTES}, columns = {TILE_SIDE, queries * 4};
    // Scores are the product of queries and keys, or with query columns, of keys and queries.
    const Shape left = queries > 0 ? full : rows, right = queries > 0 ? columns : full;
    const Shape product = queries > 0 ? columns : rows;
    const TileRegisters registers({product, rows, rows, rows, right, full, left, rows});
#endif
    Tile tiles[2], after;
    tile_at(begin, tiles[begin / KEYS % 2]);
    for (int64_t first_key = begin; first_key < end; first_key += KEYS) {
        const int current = first_key / KEYS % 2;
        const Tile& tile = tiles[current];
        Tile& next = tiles[1 - current];
        tile_at(first_key + distance, next);
        after.count = 0;
        if (next.count < tile.count && first_key + distance < end) {
            tile_at(end, after);  // the tile to prefetch while this tile is computed
        }
        Prefetcher prefetcher(tile, next, after, row_bytes(block.D, block.kv_format));
        if (mask == nullptr || load_mask(first_key, tile.count)) {
            const auto in_tile = [&](int64_t keys) {
                const int64_t count = keys - first_key;
                return static_cast<int>(count < 0 ? 0 : count < KEYS ? count : KEYS);
            };
            int visible[MAX_BLOCK_ROWS], hidden[MAX_BLOCK_ROWS];
            int first = block.rows;  // first row with a visible key in this tile
            for (int row = block.rows - 1; row >= 0; row--) {
                visible[row] = in_tile(visible_keys(row));
                first = visible[row] > 0 ? row : first;
            }
            const bool has_hidden = first_key < most_hidden;
            for (int row = 0; row < block.rows && has_hidden; row++) {
                hidden[row] = in_tile(hidden_keys(row));
            }
            attend(block, first, visible, has_hidden ? hidden : nullptr, mask, tile, prefetcher);
        }
    }
}

/// Normalizes a row by the sum of its weights and rounds it; zero without visible keys.
inline void finish_row(const AttentionBlock& block, int row, void* to, int64_t offset) {
    const float total = sum(load_bits<Floats>(block.sums + row * LANES));
    const float* out = block.out + row * block.width;
    for (int64_t d = 0; d < block.D; d += LANES) {
        const int count = static_cast<int>(block.D - d < LANES ? block.D - d : LANES);
        const Floats x = total == 0 ? Floats{} : load_bits<Floats>(out + d) / total;
        store(to, offset + d, block.format, x, count);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
