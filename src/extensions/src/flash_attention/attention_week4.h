// Week 4's kernels of attention, as plain memory: no MLX, no templates of the standard library (see
// common/half.h).
//
// The environment variable TINY_LLM_ATTENTION names one, for the model and for measuring:
//
//     loops    the reference, Week 2's: a row, a tile, a key, a number after the other
//     scores   the scores of a tile of keys in vectors; the softmax and the sum are still loops
//     online   the softmax and the sum of values in vectors, too
//     split    the same, and several threads take parts of one sequence's keys
//
// Without the variable this machine's best kernel runs. A mask in an array is left to the loops.
#pragma once

#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

/// How many query rows such a kernel is given at a time, at most.
constexpr int QUERY_ROWS = 8;

/// Keys in a part of a sequence. Part of the result's bits, as the tile is.
constexpr int64_t KEYS_PER_SPLIT = 8 * ATTENTION_TILE;

/// Up to ATTENTION_TILE keys that follow each other, and their values: where the D elements of each
/// begin in the arrays of all keys and of all values.
struct KeyTile {
    int count;
    int64_t keys[ATTENTION_TILE], values[ATTENTION_TILE];
};

/// Query rows of one sequence that attend to the same key/value head.
struct AttentionRows {
    int64_t D;
    float scale;
    Format format;  // of all arrays
    const void *query, *keys, *values;
    void* out;

    int rows;
    int64_t from[QUERY_ROWS];     // where a row's query begins, in elements
    int64_t to[QUERY_ROWS];       // where its result begins
    int64_t visible[QUERY_ROWS];  // how many keys it sees, from the first; does not fall

    /// Fills in where tile.count keys from `first` on are, and their values, for a head.
    void (*find)(const void* head, int64_t first, KeyTile& tile);
    const void* head;
};

/// What a query row knows of the keys that it has seen: the online softmax of flash_attention.h,
/// with powers of two in place of exp.
struct SoftmaxState {
    float largest;             // m: the largest score, times log₂ e
    float sum;                 // l: of the weights 2^(score − m)
    float out[MAX_HEAD_SIZE];  // o: D weighted sums of values
};

/// The kernel that TINY_LLM_ATTENTION names; none is chosen without it. Throws
/// std::invalid_argument for another name, and for a kernel with vectors where the instruction set
/// has none.
Week4Attention week4_attention();

#if defined(__x86_64__)
namespace avx2 {
void attention_scores(const float* query, const void* keys, const KeyTile& tile, int count,
                      int64_t D, Format format, float scale, float* scores);
void attention_split(const AttentionRows& block, int64_t first, int64_t end, SoftmaxState* states);
}  // namespace avx2
namespace avx512 {
void attention_scores(const float* query, const void* keys, const KeyTile& tile, int count,
                      int64_t D, Format format, float scale, float* scores);
void attention_split(const AttentionRows& block, int64_t first, int64_t end, SoftmaxState* states);
}  // namespace avx512
#elif defined(__aarch64__)
namespace neon {
void attention_scores(const float* query, const void* keys, const KeyTile& tile, int count,
                      int64_t D, Format format, float scale, float* scores);
void attention_split(const AttentionRows& block, int64_t first, int64_t end, SoftmaxState* states);
}  // namespace neon
#endif

}  // namespace tiny_llm_ext
