// Prepacked weights: the order in which kernels with vectors of 16 lanes want to read a matrix.
//
// Some rows are stored word by word: the first word of each, then the second of each, and so on. A
// vector of 64 bytes is then a word of 16 outputs, as the kernels multiply it, and no register is
// transposed for it; and memory is read from the first byte to the last. Scales and biases are
// prepacked in the same way.
//
// How many rows go together, R, is what a kernel wants: as many as it multiplies at once, so that
// it reads one place of memory, or fewer, for a processor that is faster with several places.
//
// An array says by its shape which it is: rows are O×W, prepacked (O/R)×W×R.
#pragma once

#include <cstdint>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

inline bool is_prepacked(const mlx::core::array& weights) { return weights.ndim() == 3; }

/// R: how many rows are stored together; one, where they are not prepacked.
inline int pack_rows(const mlx::core::array& weights) {
    return is_prepacked(weights) ? weights.shape(2) : 1;
}

/// How many rows a matrix has, O, either way.
inline int matrix_rows(const mlx::core::array& weights) {
    return weights.shape(0) * pack_rows(weights);
}

/// The shape of an array of `columns` numbers a row, stored as `weights` is.
inline mlx::core::Shape shape_like(const mlx::core::array& weights, int columns) {
    return is_prepacked(weights) ? mlx::core::Shape{weights.shape(0), columns, pack_rows(weights)}
                                 : mlx::core::Shape{weights.shape(0), columns};
}

}  // namespace tiny_llm_ext
