// argmax: Index of the largest element of each row.
//
//     out[n] = the smallest i with x[n, i] = max x[n, :]
//
// Used for greedy sampling over a vocabulary of 151,936 tokens: mx.argmax is scalar and
// single-threaded on a CPU, and would take a noticeable fraction of an optimized decode step. NaN
// is never the largest element; a row that contains only NaN and −∞ has the result 0.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Index of the largest element of each row; the first one on ties.
///
/// x: N..×V, float32, float16 or bfloat16; N.. stands for any leading dimensions, V is at least 1.
///   NaN is never the largest.
/// Returns N.. in uint32. Throws std::invalid_argument for any other arguments. Falls back to
/// mx.argmax on a GPU.
mx::array argmax(const mx::array& x, mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
