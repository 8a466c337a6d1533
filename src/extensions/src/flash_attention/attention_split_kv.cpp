// Attention of the course's Week 4, third step: split-KV, in which threads share the keys of a
// sequence.
//
// A split is a range of up to KEYS_PER_SPLIT keys that begins at a multiple of KEYS_PER_SPLIT.
// Attention to a split yields one SoftmaxState per query row; a row's states are merged in the
// order of the splits. Neither the splits nor their order depends on the number of threads, so the
// result's bits do not depend on it either.
#include "src/flash_attention/attention_split_kv.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/threads.h"
#include "src/flash_attention/attention_reference.h"

namespace tiny_llm_ext {

namespace {

// Number of keys visible to at least one row of a block. The last row sees the most keys.
int64_t keys_of(const AttentionRows& block) { return block.visible[block.rows - 1]; }

// Writes row `row` of the output: o / l, or zeros if no key is visible.
void finish(const AttentionRows& block, int row, const SoftmaxState& state) {
    for (int64_t d = 0; d < block.D; d++) {
        store_element(block.out, block.to[row] + d, block.format,
                      state.sum == 0 ? 0 : state.out[d] / state.sum);
    }
}

// Merges the states of a row's splits into `all`, which need not be initialized. Split p's state is
// states[p · QUERY_ROWS].
void merge(const SoftmaxState* states, int64_t parts, int64_t D, SoftmaxState& all) {
    // [task 4.6.3 merge]
    all.largest = -std::numeric_limits<float>::infinity();
    all.sum = 0;
    std::fill_n(all.out, D, 0.0f);
    for (int64_t p = 0; p < parts; p++) {
        all.largest = std::max(all.largest, states[p * QUERY_ROWS].largest);
    }
    for (int64_t p = 0; p < parts; p++) {
        const SoftmaxState& part = states[p * QUERY_ROWS];
        const bool equal = part.largest == all.largest;  // avoids ∞ − ∞
        const float factor = equal ? 1 : std::exp2(part.largest - all.largest);
        all.sum += part.sum * factor;
        for (int64_t d = 0; d < D; d++) {
            all.out[d] += part.out[d] * factor;
        }
    }
    // [/task 4.6.3 merge]
}

// Computes several blocks in two parallel passes: the first computes all splits of all blocks, the
// second merges and normalizes the states of each block.
void attend_split_kv(const AttentionRows* blocks, int64_t count, SplitKernel part) {
    struct Split {
        const AttentionRows* block;
        int64_t first_key;
    };
    std::vector<Split> splits;         // the splits of all blocks, in order
    std::vector<size_t> first_splits;  // index of each block's first split, then splits.size()
    std::unique_ptr<SoftmaxState[]> states;
    // [task 4.6.3 split]
    const int64_t size = KEYS_PER_SPLIT;
    for (int64_t b = 0; b < count; b++) {
        first_splits.push_back(splits.size());
        for (int64_t key = 0; key < keys_of(blocks[b]); key += size) {
            splits.push_back({&blocks[b], key});
        }
    }
    first_splits.push_back(splits.size());
    states = std::make_unique_for_overwrite<SoftmaxState[]>(splits.size() * QUERY_ROWS);
    parallel_for(static_cast<int64_t>(splits.size()), [&](int64_t i) {
        const auto [block, key] = splits[i];
        part(*block, key, std::min(key + size, keys_of(*block)), &states[i * QUERY_ROWS]);
    });
    // [/task 4.6.3 split]
    parallel_for(count, [&](int64_t b) {
        const size_t first = first_splits[b], parts = first_splits[b + 1] - first;
        for (int row = 0; row < blocks[b].rows; row++) {
            SoftmaxState all;
            merge(&states[first * QUERY_ROWS + row], static_cast<int64_t>(parts), blocks[b].D, all);
            finish(blocks[b], row, all);
        }
    });
}

// Computes a block row by row with Week 2's scalar softmax. Scores are computed one tile at a time.
void attend_with_scores(const AttentionRows& block, ScoresKernel scores_of) {
    for (int row = 0; row < block.rows; row++) {
        float query[MAX_HEAD_SIZE] = {};
        for (int64_t d = 0; d < block.D; d++) {
            query[d] = load_element(block.query, block.from[row] + d, block.format);
        }
        KeyTile tile;
        float scores[ATTENTION_TILE];
        int64_t first = -1;  // first key of the tile; −1: no tile yet
        const auto find = [&](int64_t s) {
            if (s / ATTENTION_TILE * ATTENTION_TILE != first) {
                first = s / ATTENTION_TILE * ATTENTION_TILE;
                const int64_t left = block.visible[row] - first;
                tile.count = static_cast<int>(std::min<int64_t>(left, ATTENTION_TILE));
                block.find(block.head, first, tile);
                scores_of(query, block.keys, tile, tile.count, block.D, block.format, block.scale,
                          scores);
            }
            return s - first;
        };
        attend_row(
            block.visible[row], block.D, block.format, [&](int64_t s) { return scores[find(s)]; },
            block.values, [&](int64_t s) { return tile.values[find(s)]; }, nullptr, block.out,
            block.to[row]);
    }
}

// Computes a block on one thread, with all keys in one split.
void attend_alone(const AttentionRows& block, const Week4Attention& kernel) {
    if (kernel.part == nullptr) {
        attend_with_scores(block, kernel.scores);
        return;
    }
    SoftmaxState states[QUERY_ROWS];
    kernel.part(block, 0, keys_of(block), states);
    for (int row = 0; row < block.rows; row++) {
        finish(block, row, states[row]);
    }
}

}  // namespace

void attend_week4(const std::vector<AttentionRows>& blocks, const Week4Attention& kernel) {
    const auto all = static_cast<int64_t>(blocks.size());
    if (!kernel.splits) {
        parallel_for(all, [&](int64_t b) { attend_alone(blocks[b], kernel); });
        return;
    }
    // Bounds the memory of the blocks' states: a block with 4,096 keys takes 64 KiB.
    constexpr int64_t MAX_BLOCKS = 64;
    for (int64_t first = 0; first < all; first += MAX_BLOCKS) {
        attend_split_kv(&blocks[first], std::min(MAX_BLOCKS, all - first), kernel.part);
    }
}

}  // namespace tiny_llm_ext
