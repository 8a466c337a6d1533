// scaled_sum: Residual connection with a scalar, the last operation of Gemma 4's blocks.
//
//     out[n, i] = round(x[n, i] + y[n, i]) · scale
//
// The sum is rounded to the arrays' dtype before the product, as in two separate operations.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// (x + y) · scale, elementwise.
///
/// x, y: N..×D, same shape and dtype: float32, float16 or bfloat16.
/// Returns N..×D in that dtype. Throws std::invalid_argument for any other arguments.
mx::array scaled_sum(const mx::array& x, const mx::array& y, float scale,
                     mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
