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
#pragma once

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

}  // namespace tiny_llm_ext
