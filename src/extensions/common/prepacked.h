// Prepacked weight layout of the vector kernels.
//
// A pack interleaves R rows of packed weights, one 32-bit integer at a time: the first of each row,
// then the second of each row, and so on. A vector load then fills each lane with weights of a
// different output row, as the kernels need them, without transposition in registers, and memory is
// read sequentially. Scales and biases are interleaved in the same way, one element at a time.
//
// Each kernel chooses R. If R is the number of rows that the kernel multiplies at once, it reads
// memory as a single sequential stream. A smaller R divides the reads into several streams, which
// some CPUs read faster.
//
// The shape distinguishes the layouts of O rows with W elements: row-major is O×W, prepacked is
// (O/R)×W×R.
//
// Weights are *symmetric* if every bias is −2^(bits − 1) · scale, as in GGUF's Q4_0 and Q8_0.
// Prepacked, they need no biases: (O/R)×0×R.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

inline bool is_prepacked(const mlx::core::array& weights) { return weights.ndim() == 3; }

/// R: rows per pack; 1 for row-major weights.
inline int pack_rows(const mlx::core::array& weights) {
    return is_prepacked(weights) ? weights.shape(2) : 1;
}

/// O: rows of a weight matrix in either layout.
inline int matrix_rows(const mlx::core::array& weights) {
    return weights.shape(0) * pack_rows(weights);
}

/// The shape of an array with `columns` elements per row in the layout of `weights`.
inline mlx::core::Shape shape_like(const mlx::core::array& weights, int columns) {
    return is_prepacked(weights) ? mlx::core::Shape{weights.shape(0), columns, pack_rows(weights)}
                                 : mlx::core::Shape{weights.shape(0), columns};
}

constexpr int64_t CACHE_LINE = 64;  // bytes

/// Interleaves `rows` rows of W elements into a pack, W × pack_rows, one cache line of every row at
/// a time, so that each line is read once. Does not write the pack's elements past `rows`.
template <typename T>
void interleave(const T* from, int64_t W, int64_t rows, T* to, int64_t pack_rows) {
    constexpr int64_t LINE_WORDS = CACHE_LINE / sizeof(T);
    for (int64_t line = 0; line < W; line += LINE_WORDS) {
        const int64_t end = std::min(W, line + LINE_WORDS);
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t w = line; w < end; w++) {
                to[w * pack_rows + r] = from[r * W + w];
            }
        }
    }
}

/// Whether biases have the shape of scales, or no columns because prepacked weights are symmetric.
inline bool fits_scales(const mlx::core::array& biases, const mlx::core::array& scales) {
    return biases.shape() == scales.shape() ||
           (is_prepacked(scales) && biases.shape() == shape_like(scales, 0));
}

}  // namespace tiny_llm_ext
