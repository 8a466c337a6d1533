// rms_norm: RMSNorm over rows, with an optional fused residual addition.
//
//     out[n, i] = round(x[n, i] / √(mean_i(x[n, i]²) + eps)) · weight[i]
//
// The mean is computed in float32. round() rounds to the dtype of the weight: that of x, as in
// tiny_llm.layer_norm, or float32, as in transformers' hybrids, which multiply by 1 + w in float32.
// out is rounded to the dtype of x. A row's result is independent of the other rows.
//
// add_rms_norm first adds two arrays and also returns their sum: in a transformer, a norm follows
// each residual connection, and the next residual connection needs the sum.
#pragma once

#include <utility>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x / √(mean(x²) + eps) · weight, over the last axis.
///
/// x: N..×D, float32, float16 or bfloat16. weight: D, float32 or the dtype of x.
/// eps: avoids division by zero for a row of zeros.
/// Returns N..×D in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps,
                   mx::StreamOrDevice s = {});

/// x + y and its rms_norm: a residual connection and the following norm.
///
/// x, y: N..×D, same shape and dtype; weight and eps as in rms_norm.
/// Returns x + y, rounded to their dtype, and rms_norm of the rounded sum, both N..×D.
/// Throws std::invalid_argument for any other arguments.
std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& y,
                                             const mx::array& weight, float eps,
                                             mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
