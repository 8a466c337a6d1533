// add_bias: Adds the bias of a linear layer, such as Qwen2's QKV projections.
//
//     out[n, i] = x[n, i] + bias[i]      or, for a row's expert,   x[n, i] + bias[experts[n], i]
//
// The bias is added to the matmul's rounded output, as in tiny_llm.basics.linear.
#pragma once

#include <optional>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x + bias, broadcast over rows; or each row plus its expert's bias.
///
/// x: N..×O, float32, float16 or bfloat16; N.. stands for any leading dimensions.
/// bias: O, or X×O for X experts; dtype of x.
/// experts: N.. uint32 with a bias X×O; an index beyond X counts as X − 1.
/// Returns N..×O in that dtype. Throws std::invalid_argument for anything else.
mx::array add_bias(const mx::array& x, const mx::array& bias,
                   const std::optional<mx::array>& experts = std::nullopt,
                   mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
