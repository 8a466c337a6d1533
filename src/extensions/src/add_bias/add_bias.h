// add_bias: Adds the bias of a linear layer, such as Qwen2's QKV projections.
//
//     out[n, i] = x[n, i] + bias[i]
//
// The bias is added to the matmul's rounded output, as in tiny_llm.basics.linear.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x + bias, broadcast over rows.
///
/// x: N..×O, float32, float16 or bfloat16; N.. stands for any leading dimensions.
/// bias: O, dtype of x.
/// Returns N..×O in that dtype. Throws std::invalid_argument for anything else.
mx::array add_bias(const mx::array& x, const mx::array& bias, mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
