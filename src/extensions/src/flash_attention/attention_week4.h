// Attention kernels of the course's Week 4, on raw pointers: no MLX and no standard library
// templates (see common/half.h).
//
// The environment variable TINY_LLM_ATTENTION selects one, for the model and for benchmarks:
//
//     loops    Week 2's reference: scalar loops over rows, tiles, keys and elements
//     scores   vectorized scores of a tile; scalar softmax and weighted sum
//     online   vectorized scores, softmax and weighted sum
//     split    online with one sequence's keys split over threads
//
// The default is the fastest kernel that the machine supports. With a mask array or sinks, the
// reference is always used.
#pragma once

#include "common/declare_simd.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

/// Maximum query rows per kernel call.
constexpr int QUERY_ROWS = 8;

/// Keys per split. Like the tile size, it affects the summation order and thus the result's bits.
constexpr int64_t KEYS_PER_SPLIT = 8 * ATTENTION_TILE;

/// Up to ATTENTION_TILE consecutive keys and their values, as element offsets of their rows in the
/// arrays of all keys and all values.
struct KeyTile {
    int count;
    int64_t keys[ATTENTION_TILE], values[ATTENTION_TILE];
};

/// Query rows of one sequence that attend to the same key/value head.
struct AttentionRows {
    int64_t D;  // head size
    float scale;
    Format format;  // format of all arrays
    const void *query, *keys, *values;
    void* out;

    int rows;
    int64_t from[QUERY_ROWS];     // offset of a row's query, in elements
    int64_t to[QUERY_ROWS];       // offset of a row's output, in elements
    int64_t visible[QUERY_ROWS];  // number of leading visible keys; non-decreasing

    /// Fills in the offsets of tile.count keys and values of a head, starting at key `first`.
    void (*find)(const void* head, int64_t first, KeyTile& tile);
    const void* head;  // argument of `find`
};

/// Softmax state of a query row: the online softmax of flash_attention.h, in base 2.
struct SoftmaxState {
    float largest;             // m: the largest score, times log₂ e
    float sum;                 // l: sum of the weights 2^(score − m)
    float out[MAX_HEAD_SIZE];  // o: weighted sum of the values, D elements
};

/// The kernel selected by TINY_LLM_ATTENTION; `is_selected` is false if the variable is not set.
/// Throws std::invalid_argument for an unknown name, and for a vector kernel with the portable
/// instruction set.
Week4Attention week4_attention();

TINY_LLM_DECLARE_SIMD(void attention_scores(const float* query, const void* keys,
                                            const KeyTile& tile, int count, int64_t D,
                                            Format format, float scale, float* scores);
                      void attention_split(const AttentionRows& block, int64_t first, int64_t end,
                                           SoftmaxState* states);)

}  // namespace tiny_llm_ext
