// CPU kernels of flash_attention on raw pointers: no MLX, no standard library templates (see
// common/half.h).
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

/// Keys per tile. Results are bitwise reproducible only for a fixed tile size; every tile
/// starts at a multiple of it.
constexpr int ATTENTION_TILE = 64;

/// Upper bounds of the head size D and of the query rows per kernel call.
constexpr int MAX_HEAD_SIZE = 512;
constexpr int MAX_BLOCK_ROWS = 128;

/// Strides, in elements, of an array B×heads×tokens×D with contiguous rows of D elements.
struct Strides {
    int64_t batch, head, token;
};

enum class MaskKind { none, boolean, additive };

struct AttentionRows;  // defined in attention_week4.h
struct KeyTile;
struct SoftmaxState;

/// scores[s] = query · key s · scale, for the first `count` keys of a tile. query: D float32,
/// zero-padded to full vectors.
using ScoresKernel = void (*)(const float* query, const void* keys, const KeyTile& tile, int count,
                              int64_t D, Format format, float scale, float* scores);

/// states[r] = softmax state of the block's row r over its visible keys among first … end − 1.
using SplitKernel = void (*)(const AttentionRows& block, int64_t first, int64_t end,
                             SoftmaxState* states);

/// The Week 4 kernel selected by TINY_LLM_ATTENTION (attention_week4.h). If `is_selected` is false,
/// no kernel is selected and the default kernel runs. If `is_selected` is true but both function
/// pointers are null, the reference runs.
struct Week4Attention {
    bool is_selected = false;
    ScoresKernel scores = nullptr;
    SplitKernel part = nullptr;
    bool splits = false;  // whether threads share the keys of a sequence

    /// Whether the reference is selected.
    bool is_reference() const { return is_selected && scores == nullptr && part == nullptr; }
};

/// Arguments of a CPU kernel.
struct FlashAttentionJob {
    int64_t B, H_q, H, L, S, D;  // sizes: see flash_attention.h; B sequences
    float scale;
    bool causal;
    Format format;      // format of query, key, value and out
    const void* query;  // B×H_q×L×D
    const void* key;    // B×H×S×D
    const void* value;  // B×H×S×D
    void* out;          // B×L×H_q×D, contiguous
    Strides query_strides, key_strides, value_strides;

    MaskKind mask_kind;
    Format mask_format;    // format of an additive mask; a boolean mask has bytes
    const void* mask;      // B×H_q×L×S
    Strides mask_strides;  // 0 for broadcast dimensions
    int64_t mask_key_stride;

    const int32_t* context_lens;  // B, or null
    const float* sinks;           // H_q, or null
    Week4Attention week4_kernel;
};

// Query heads that share a key/value head read the same keys, so a kernel batches them. With
// G = H_q / H heads in a group, row r of key/value head h is token r / G of query head h·G + r % G.

/// Reference kernel: computes query rows first_row … first_row + rows − 1 that share key/value head
/// h of sequence b. Needs no scratch memory, unlike the vectorized kernels.
void flash_attention_reference(const FlashAttentionJob& job, int64_t b, int64_t h,
                               int64_t first_row, int rows, float* scratch);

namespace {  // internal linkage: the linker must not merge copies (see common/half.h)

/// Number of leading keys that token l of sequence b sees if the mask argument is ignored.
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

/// Mask term of key s in query row (b, head, l); 0 or −inf for a boolean mask.
[[maybe_unused]] inline float mask_element(const FlashAttentionJob& job, int64_t b, int64_t head,
                                           int64_t l, int64_t s) {
    const int64_t i = b * job.mask_strides.batch + head * job.mask_strides.head +
                      l * job.mask_strides.token + s * job.mask_key_stride;
    if (job.mask_kind == MaskKind::additive) {
        return load_element(job.mask, i, job.mask_format);
    }
    return static_cast<const uint8_t*>(job.mask)[i] != 0 ? 0.0f : -__builtin_inff();
}

/// Offset of a row of D elements, in elements from the start of its array.
[[maybe_unused]] inline int64_t row_offset(const Strides& strides, int64_t b, int64_t head,
                                           int64_t token) {
    return b * strides.batch + head * strides.head + token * strides.token;
}

/// Offset of a row of D elements in out.
[[maybe_unused]] inline int64_t out_offset(const FlashAttentionJob& job, int64_t b, int64_t head,
                                           int64_t l) {
    return ((b * job.L + l) * job.H_q + head) * job.D;
}

/// Rows per kernel call, out of `rows` that attend to the same keys: as many as possible, to share
/// cached tiles, but few enough to keep all threads busy.
///
/// all_rows: rows of the operation, over all kernel calls.
[[maybe_unused]] inline int64_t rows_per_block(int64_t rows, int64_t all_rows, int threads) {
    constexpr int64_t MIN_ROWS = 24;
    const int64_t target_blocks = 4 * static_cast<int64_t>(threads);
    const int64_t share = (all_rows + target_blocks - 1) / target_blocks;
    const int64_t most = rows < MAX_BLOCK_ROWS ? rows : MAX_BLOCK_ROWS;
    const int64_t target_rows = share < MIN_ROWS ? MIN_ROWS : share;
    return target_rows < most ? target_rows : most;
}

}  // namespace

}  // namespace tiny_llm_ext
