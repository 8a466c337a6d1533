// attention_block_simd.cpp with AMX, for bfloat16 queries. One tdpbf16ps multiplies 32 elements of
// 16 queries by those of 16 keys, or the weights of 32 keys for 16 queries by 16 columns of values.
//
// The weights are float32, but AMX multiplies bfloat16, so each weight is split into two:
//
//     weight = high + low + error      high, low: truncated to bfloat16      |error| < weight / 2¹⁵
//
// Every element of scores and out is the same sum in the same order whatever the size of the block,
// so a row's bits do not depend on the other rows. attention_few_rows_amx.h has the same bits.
#include "src/flash_attention/fast/attention_few_rows_amx.h"
#include "src/flash_attention/fast/attention_softmax.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int64_t SCORE_ROW_BYTES = KEYS * sizeof(float);
constexpr int64_t LOW_PARTS_OFFSET = KEYS * 2;  // in bytes, within a row of split weights

// --- multiplications ----------------------------------------------------------------------------

// scores = query · keys for 16 rows. A step multiplies 16 pairs of elements of the queries by those
// of 16 keys. Tile registers: 0 scores, 4 keys, 6 queries.
class Scores {
   public:
    // Without steps if row ≥ block.rows.
    Scores(const AttentionBlock& block, int row)
        : block_(&block), row_(row), key_(row < block.rows ? 0 : KEYS) {}

    int steps() const { return (KEYS - key_) / TILE_SIDE * pairs() / TILE_SIDE; }

    void run(int steps) {
        for (; steps > 0 && key_ < KEYS; steps--) {
            if (pair_ == 0) {
                _tile_zero(0);
            }
            const float* query = block_->query + row_ * block_->width + pair_;
            const float* keys = block_->keys + pair_ * KEYS + key_;
            _tile_loadd(6, query, block_->width * sizeof(float));
            _tile_loadd(4, keys, KEYS * sizeof(float));
            _tile_dpbf16ps(0, 6, 4);
            pair_ += TILE_SIDE;
            if (pair_ == pairs()) {
                _tile_stored(0, block_->scores + row_ * KEYS + key_, SCORE_ROW_BYTES);
                pair_ = 0;
                key_ += TILE_SIDE;
            }
        }
    }

   private:
    int pairs() const { return score_steps(block_->D, block_->kv_format); }

    const AttentionBlock* block_;
    int row_;
    int key_;       // first key of the next step
    int pair_ = 0;  // first pair of the next step
};

// out += weights · values for 16 rows. A step computes two times 16 columns, so that the sums of
// one need not wait for each other; each with two multiplications for 32 keys: by the high and the
// low parts of the weights. Tile registers: 1–2 out, 5 values, 3 and 7 weights.
class Values {
   public:
    // Without steps.
    explicit Values(const AttentionBlock& block) : block_(&block), column_(block.width) {}

    // weights: 16 rows as stored by split_weights, for `count` keys.
    Values(const AttentionBlock& block, const float* weights, int count, float* out)
        : block_(&block), weights_((const char*)weights), count_(count), out_(out) {}

    int steps() const { return static_cast<int>((block_->width - column_) / STEP_COLUMNS); }

    void run(int steps) {
        const int64_t stride = block_->width * sizeof(float);
        for (; steps > 0 && column_ < block_->width; steps--, column_ += STEP_COLUMNS) {
            _tile_loadd(1, out_ + column_, stride);
            _tile_loadd(2, out_ + column_ + TILE_SIDE, stride);
            for (int key = 0; key < count_; key += 2 * TILE_SIDE) {
                const char* weights = weights_ + key * 2;
                const float* values = block_->values + key / 2 * block_->width + column_;
                _tile_loadd(3, weights, SCORE_ROW_BYTES);
                _tile_loadd(7, weights + LOW_PARTS_OFFSET, SCORE_ROW_BYTES);
                _tile_loadd(5, values, stride);
                _tile_dpbf16ps(1, 3, 5);
                _tile_dpbf16ps(1, 7, 5);
                _tile_loadd(5, values + TILE_SIDE, stride);
                _tile_dpbf16ps(2, 3, 5);
                _tile_dpbf16ps(2, 7, 5);
            }
            _tile_stored(1, out_ + column_, stride);
            _tile_stored(2, out_ + column_ + TILE_SIDE, stride);
        }
    }

   private:
    static constexpr int STEP_COLUMNS = 2 * TILE_SIDE;

    const AttentionBlock* block_;
    const char* weights_ = nullptr;
    int count_ = 0;
    float* out_ = nullptr;
    int64_t column_ = 0;  // first column of the next step
};

// --- operands -----------------------------------------------------------------------------------

// Truncates two vectors of floats to bfloat16.
inline __m512i truncate_to_bfloat16(Floats first, Floats second) {
    alignas(64) static constexpr uint16_t UPPER[] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                     23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                     45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16((__m512i)first, _mm512_load_si512(UPPER), (__m512i)second);
}

// Replaces a row's weights by their high parts, followed by their low parts; both zero except for
// keys `from` … `to` − 1. The scale of a hidden 8-bit value, and so its weight, may be NaN.
inline void split_weights(float* weights, int from, int to) {
    Floats weight[KEY_VECTORS], low[KEY_VECTORS];
    for (int v = 0; v < KEY_VECTORS; v++) {
        const Ints keys = lane_indices() + v * LANES;
        const Ints visible = (keys >= from) & (keys < to);
        weight[v] = as_floats(as_ints(load_bits<Floats>(weights + v * LANES)) & visible);
        low[v] = weight[v] - truncated(weight[v]);
    }
    char* parts = (char*)weights;
    for (int v = 0; v < KEY_VECTORS; v += 2, parts += TILE_ROW_BYTES) {
        _mm512_storeu_si512(parts, truncate_to_bfloat16(weight[v], weight[v + 1]));
        _mm512_storeu_si512(parts + LOW_PARTS_OFFSET, truncate_to_bfloat16(low[v], low[v + 1]));
    }
}

// 32 8-bit integers as bfloat16.
inline __m512i to_bfloat16(__m256i bytes) {
    const __m512i words = _mm512_cvtepi8_epi16(bytes);
    const __m512i even = _mm512_madd_epi16(words, _mm512_set1_epi32(1));
    const __m512i odd = _mm512_srai_epi32(words, 16);
    const auto bits = [](__m512i x) { return (__m512i)_mm512_cvtepi32_ps(x); };
    // Exact: an 8-bit integer fits in bfloat16's 8 significant bits.
    return _mm512_or_si512(_mm512_srli_epi32(bits(even), 16), bits(odd));
}

// `count` ≤ 32 elements of a row from column d on, as bfloat16; the others are zero.
__attribute__((always_inline)) inline __m512i load_bfloat16(const void* row, int64_t d,
                                                            Format format, int count) {
    const void* from = element(row, d, format);
    if (count == TILE_COLUMNS) {
        return format == Format::int8 ? to_bfloat16(_mm256_loadu_si256((const __m256i*)from))
                                      : _mm512_loadu_si512(from);
    }
    const auto mask = static_cast<__mmask32>((uint64_t{1} << count) - 1);
    return format == Format::int8 ? to_bfloat16(_mm256_maskz_loadu_epi8(mask, from))
                                  : _mm512_maskz_loadu_epi16(mask, from);
}

// Whether all of the tile's values are finite.
bool are_finite(const Tile& tile, int64_t D, Format format) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 not_finite = 0;
    for (int key = 0; key < tile.count; key++) {
        for (int64_t d = 0; d < D; d += TILE_COLUMNS) {
            const int count = static_cast<int>(D - d < TILE_COLUMNS ? D - d : TILE_COLUMNS);
            const __m512i x = load_bfloat16(tile.values[key], d, format, count);
            not_finite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        }
    }
    return not_finite == 0;
}

// values = the tile's values in pairs of keys, up to a multiple of 32 keys; zero except for keys
// `from` … `to` − 1.
void load_values(const AttentionBlock& block, const Tile& tile, int from, int to,
                 Prefetcher& prefetcher) {
    alignas(64) uint16_t order[2][TILE_COLUMNS];
    for (int i = 0; i < TILE_COLUMNS; i++) {  // columns 0–15 and 16–31 of two keys, interleaved
        order[0][i] = static_cast<uint16_t>(i / 2 + i % 2 * TILE_COLUMNS);
        order[1][i] = static_cast<uint16_t>(order[0][i] + TILE_COLUMNS / 2);
    }
    const __m512i first_columns = _mm512_load_si512(order[0]);
    const __m512i last_columns = _mm512_load_si512(order[1]);
    const int end = static_cast<int>(padded(tile.count, 2 * TILE_SIDE));
    for (int key = 0; key < end; key += 2) {
        const auto load = [&](int i, int64_t d) {
            const int count =
                static_cast<int>(block.D - d < TILE_COLUMNS ? block.D - d : TILE_COLUMNS);
            return i < from || i >= to ? _mm512_setzero_si512()
                                       : load_bfloat16(tile.values[i], d, block.kv_format, count);
        };
        float* pairs = block.values + key / 2 * block.width;
        for (int64_t d = 0; d < block.D; d += TILE_COLUMNS) {
            const __m512i x = load(key, d), y = load(key + 1, d);
            _mm512_storeu_si512(pairs + d, _mm512_permutex2var_epi16(x, first_columns, y));
            _mm512_storeu_si512(pairs + d + TILE_SIDE,
                                _mm512_permutex2var_epi16(x, last_columns, y));
        }
        prefetcher.prefetch_until(0.3f + 0.4f * static_cast<float>(key + 2) / KEYS);
    }
    compiler_barrier();
}

// --- a tile -------------------------------------------------------------------------------------

// out += weights · values, with only the visible values of each row, because 0 · ∞ is NaN.
__attribute__((noinline)) void add_visible_values(const AttentionBlock& block, int first,
                                                  const int* visible, const int* hidden,
                                                  const Tile& tile, Prefetcher& prefetcher) {
    for (int row = first; row < block.rows; row++) {
        load_values(block, tile, hidden == nullptr ? 0 : hidden[row], visible[row], prefetcher);
        const int first_of_16 = row / TILE_SIDE * TILE_SIDE;
        float out[TILE_SIDE * MAX_HEAD_SIZE];  // the other rows are garbage
        float* copy = out + (row - first_of_16) * block.width;
        float* row_out = block.out + row * block.width;
        memcpy(copy, row_out, block.width * sizeof(float));
        compiler_barrier();
        Values values(block, block.scores + first_of_16 * KEYS, tile.count, out);
        values.run(values.steps());
        memcpy(row_out, copy, block.width * sizeof(float));
    }
}

}  // namespace

// While the vector units compute the softmax of 16 rows, AMX computes the scores of the next rows
// and the products of the previous rows' probabilities and values, a few multiplications at a time:
// the out-of-order window is too small to overlap whole phases.
void attend(const AttentionBlock& block, int first, const int* visible, const int* hidden,
            const float* mask, const Tile& tile, Prefetcher& prefetcher) {
    if (block.rows <= FEW_ROWS) {
        block.kv_format == Format::int8
            ? attend_few<Format::int8>(block, visible, hidden, mask, tile, prefetcher)
            : attend_few<Format::bfloat16>(block, visible, hidden, mask, tile, prefetcher);
        return;
    }
    first = first / TILE_SIDE * TILE_SIDE;
    const bool in_place = query_columns(block) > 0;
    if (in_place) {
        score_in_place<TILE_SIDE>(block, tile, prefetcher);
    } else {
        load_keys(tile, block.D, block.kv_format, block.keys, prefetcher);
    }
    load_values(block, tile, 0, tile.count, prefetcher);
    const bool all_visible = hidden == nullptr && visible[first] == tile.count;
    const bool adds_values = all_visible || are_finite(tile, block.D, block.kv_format);
    const Softmax softmax(block, visible, hidden, mask, tile);
    Scores scores(block, in_place ? block.rows : first);
    scores.run(scores.steps());
    Values values(block);
    for (int row = first; row < block.rows; row += TILE_SIDE) {
        constexpr int VALUE_ROWS = 4;  // rows per share of values
        const int last = block.rows - row < TILE_SIDE ? block.rows : row + TILE_SIDE;
        scores = Scores(block, last);
        const int score_share = (scores.steps() + TILE_SIDE - 1) / TILE_SIDE;
        const int value_share = (values.steps() * VALUE_ROWS + TILE_SIDE - 1) / TILE_SIDE;
        for (int i = row; i < last; i++) {
            softmax.run(i);
            split_weights(block.scores + i * KEYS, hidden == nullptr ? 0 : hidden[i], visible[i]);
            scores.run(score_share);
            if (i % VALUE_ROWS == 0) {
                values.run(value_share);
            }
        }
        scores.run(scores.steps());
        values.run(values.steps());
        compiler_barrier();
        if (adds_values) {
            values =
                Values(block, block.scores + row * KEYS, tile.count, block.out + row * block.width);
        }
    }
    values.run(values.steps());
    if (!adds_values) {
        add_visible_values(block, first, visible, hidden, tile, prefetcher);
    }
    prefetcher.prefetch_until(1);
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
