// What the CPU kernels of flash_attention work on, as plain memory: no MLX, no templates of the
// standard library (see common/half.h).
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

/// Keys in a tile. Part of the result's bits: every tile begins at a multiple of it.
constexpr int ATTENTION_TILE = 64;

/// The largest D, and the most rows that a kernel is given at once.
constexpr int MAX_HEAD_SIZE = 256;
constexpr int MAX_BLOCK_ROWS = 128;

/// How far apart neighbours in B×heads×tokens×D are, in elements; rows of D are contiguous.
struct Strides {
    int64_t batch, head, token;
};

enum class MaskKind { none, boolean, additive };

struct AttentionRows;  // these three are in attention_week4.h
struct KeyTile;
struct SoftmaxState;

/// scores[s] = query · key s · scale, for the first `count` keys of a tile. query: D float32
/// numbers, and zeros up to a whole vector.
using ScoresKernel = void (*)(const float* query, const void* keys, const KeyTile& tile, int count,
                              int64_t D, Format format, float scale, float* scores);

/// states[r] = what row r of the block knows of those of the keys first … end − 1 that it sees.
using SplitKernel = void (*)(const AttentionRows& block, int64_t first, int64_t end,
                             SoftmaxState* states);

/// A kernel of Week 4, if one was asked for: see attention_week4.h. Without functions it is the
/// reference.
struct Week4Attention {
    bool chosen = false;
    ScoresKernel scores = nullptr;
    SplitKernel part = nullptr;
    bool splits = false;  // threads share the keys of a sequence

    /// Whether the reference is to run.
    bool loops() const { return chosen && scores == nullptr && part == nullptr; }
};

/// Everything a CPU kernel needs to know.
struct FlashAttentionJob {
    int64_t B, H_q, H, L, S, D;
    float scale;
    bool causal;
    Format format;      // of query, key, value and out
    const void* query;  // B×H_q×L×D
    const void* key;    // B×H×S×D
    const void* value;  // B×H×S×D
    void* out;          // B×L×H_q×D, contiguous
    Strides query_strides, key_strides, value_strides;

    MaskKind mask_kind;
    Format mask_format;    // of an additive mask; a boolean one has a byte an element
    const void* mask;      // B×H_q×L×S
    Strides mask_strides;  // 0 where it was broadcast
    int64_t mask_key_stride;

    const int32_t* context_lens;  // B, or null
    Week4Attention step;
};

// Query heads that share a key/value head see the same keys, so a kernel takes them together. With
// G = H_q / H heads in a group, row r of key/value head h is token r / G of query head h·G + r % G.

/// The reference: computes rows first_row … first_row + rows − 1 of key/value head h of sequence b.
/// It needs no scratch, memory that other kernels work in.
void flash_attention_reference(const FlashAttentionJob& job, int64_t b, int64_t h,
                               int64_t first_row, int rows, float* scratch);

namespace {  // a copy in each file: see common/half.h

/// How many keys, from the first, token l of sequence b may see, as far as no mask hides them.
[[maybe_unused]] inline int64_t visible_keys(const FlashAttentionJob& job, int64_t b, int64_t l) {
    int64_t keys = job.S;
    if (job.context_lens != nullptr) {
        const int64_t given = job.context_lens[b];
        keys = given < 0 ? 0 : given < keys ? given : keys;
    }
    if (!job.causal) {
        return keys;
    }
    const int64_t visible = l + 1 + keys - job.L;
    return visible < 0 ? 0 : visible < keys ? visible : keys;
}

/// What the mask adds to the score of key s of query row (b, head, l): 0 or −inf if boolean.
[[maybe_unused]] inline float mask_element(const FlashAttentionJob& job, int64_t b, int64_t head,
                                           int64_t l, int64_t s) {
    const int64_t i = b * job.mask_strides.batch + head * job.mask_strides.head +
                      l * job.mask_strides.token + s * job.mask_key_stride;
    if (job.mask_kind == MaskKind::additive) {
        return load_element(job.mask, i, job.mask_format);
    }
    return static_cast<const uint8_t*>(job.mask)[i] != 0 ? 0.0f : -__builtin_inff();
}

/// Element 0 of a row of D, in elements from the start of an array.
[[maybe_unused]] inline int64_t row_offset(const Strides& strides, int64_t b, int64_t head,
                                           int64_t token) {
    return b * strides.batch + head * strides.head + token * strides.token;
}

/// Element 0 of a row of out.
[[maybe_unused]] inline int64_t out_offset(const FlashAttentionJob& job, int64_t b, int64_t head,
                                           int64_t l) {
    return ((b * job.L + l) * job.H_q + head) * job.D;
}

/// How many rows a kernel takes at once, of `rows` that attend to the same keys: many, because all
/// of them use a tile while it is in the cache, but not so many that threads are left without work.
///
/// all_rows: those of the whole operation.
[[maybe_unused]] inline int64_t rows_per_block(int64_t rows, int64_t all_rows, int threads) {
    constexpr int64_t FEWEST = 24;
    const int64_t wanted_blocks = 4 * static_cast<int64_t>(threads);
    const int64_t share = (all_rows + wanted_blocks - 1) / wanted_blocks;
    const int64_t most = rows < MAX_BLOCK_ROWS ? rows : MAX_BLOCK_ROWS;
    const int64_t wanted = share < FEWEST ? FEWEST : share;
    return wanted < most ? wanted : most;
}

}  // namespace

}  // namespace tiny_llm_ext
