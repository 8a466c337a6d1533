// Interleaved weights: the order in which kernels with vectors of 16 lanes want to read a matrix.
//
// Sixteen rows are stored word by word: the first word of each, then the second of each, and so on.
// A vector of 64 bytes is then a word of 16 outputs, as the kernels multiply it, and no register is
// transposed for it; and memory is read from the first byte to the last. Scales and biases are
// interleaved in the same way.
//
// An array says by its shape which it is: rows are O×W, interleaved (O/16)×W×16.
#pragma once

#include <cstdint>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// So many rows are interleaved.
constexpr int INTERLEAVED_ROWS = 16;

inline bool is_interleaved(const mlx::core::array& weights) { return weights.ndim() == 3; }

/// How many rows a matrix has, O, either way.
inline int matrix_rows(const mlx::core::array& weights) {
    return is_interleaved(weights) ? weights.shape(0) * INTERLEAVED_ROWS : weights.shape(0);
}

/// The shape of an array of `columns` numbers a row, stored as `weights` is.
inline mlx::core::Shape shape_like(const mlx::core::array& weights, int columns) {
    return is_interleaved(weights) ? mlx::core::Shape{weights.shape(0), columns, INTERLEAVED_ROWS}
                                   : mlx::core::Shape{weights.shape(0), columns};
}

}  // namespace tiny_llm_ext
