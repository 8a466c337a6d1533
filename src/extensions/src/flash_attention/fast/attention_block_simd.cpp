// A block of query rows attends to one tile: scores, the online softmax, and the weighted values.
//
// In a file of its own because it is most of what there is to compile, and because flash and paged
// attention share it: what they differ in is where tiles come from.
#include "common/simd_matmul.h"
#include "src/flash_attention/fast/attention_block.h"
#include "src/flash_attention/fast/attention_few_rows.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEY_VECTORS = KEYS / LANES;

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

}  // namespace

void attend(const AttentionBlock& block, int first, const int* visible, const float* mask,
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

}  // namespace tiny_llm_ext::TINY_LLM_ISA
