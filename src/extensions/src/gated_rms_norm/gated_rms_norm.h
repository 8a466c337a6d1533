// gated_rms_norm: Normalization and gate of a Gated DeltaNet's output.
//
//     y[n, d] = o[n, d] / √(mean_d o[n, d]² + eps) · weight[d] · silu(z[n, d])
//
// Computed in float32 and rounded once.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// RMSNorm of each value head, times silu(z).
///
/// o: N..×D_v float32; N.. stands for any leading dimensions, D_v is the size of a value head.
/// z: N..×D_v, float32, float16 or bfloat16.
/// weight: D_v, float32 or the dtype of z. eps: added to the mean of squares.
/// Returns N..×D_v in the dtype of z. Throws std::invalid_argument for any other arguments.
mx::array gated_rms_norm(const mx::array& o, const mx::array& z, const mx::array& weight, float eps,
                         mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
