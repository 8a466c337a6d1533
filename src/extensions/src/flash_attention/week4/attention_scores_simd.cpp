// Attention of the course's Week 4, first step: vectorized scores of a query with a tile of keys.
//
// A key and the query are D contiguous elements each: vectors are multiplied lane by lane, and the
// lanes are summed at the end of the key. An addition has a latency of about four cycles, so the
// sums of several keys are accumulated at the same time.
#include "common/simd.h"
#include "src/flash_attention/attention_week4.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEY_BLOCK = 8;  // keys scored at the same time

// scores[s] = query · key s · scale, for the first `count` ≥ 1 keys. `format` is a template
// parameter, so that `load` does not branch on it.
template <Format format>
void scores_of(const float* query, const void* keys, const KeyTile& tile, int count, int64_t D,
               float scale, float* scores) {
    // [task 4.6.1 scores]
    const int64_t whole = D / LANES * LANES;
    for (int first = 0; first < count; first += KEY_BLOCK) {
        int64_t offset[KEY_BLOCK];  // entries past the last key repeat its offset
        for (int k = 0; k < KEY_BLOCK; k++) {
            offset[k] = tile.keys[first + k < count ? first + k : count - 1];
        }
        Floats sums[KEY_BLOCK] = {};
        for (int64_t d = 0; d < whole; d += LANES) {
            const Floats q = load_bits<Floats>(query + d);
            for (int k = 0; k < KEY_BLOCK; k++) {
                sums[k] = fma(q, load(keys, offset[k] + d, format), sums[k]);
            }
        }
        if (whole < D) {
            const Floats q = load_bits<Floats>(query + whole);
            const int left = static_cast<int>(D - whole);
            for (int k = 0; k < KEY_BLOCK; k++) {
                sums[k] = fma(q, load(keys, offset[k] + whole, format, left), sums[k]);
            }
        }
        for (int k = 0; k < KEY_BLOCK && first + k < count; k++) {
            scores[first + k] = sum(sums[k]) * scale;
        }
    }
    // [/task 4.6.1 scores]
}

}  // namespace

void attention_scores(const float* query, const void* keys, const KeyTile& tile, int count,
                      int64_t D, Format format, float scale, float* scores) {
    switch (format) {
        case Format::float32:
            return scores_of<Format::float32>(query, keys, tile, count, D, scale, scores);
        case Format::float16:
            return scores_of<Format::float16>(query, keys, tile, count, D, scale, scores);
        default:
            return scores_of<Format::bfloat16>(query, keys, tile, count, D, scale, scores);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
