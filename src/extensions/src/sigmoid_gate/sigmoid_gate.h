// sigmoid_gate: Output gate of an attention layer.
//
//     out[n, i] = x[n, i] · σ(gate[n, i])     or σ(gate[n]), a gate per row
//
// Computed in float32 and rounded once.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// x · sigmoid(gate), elementwise or with a gate per row.
///
/// x: N..×D, float32, float16 or bfloat16. gate: N..×D or N..×1, dtype of x. Views with a single
///   row stride, such as the gates in a projection that interleaves queries and gates, are not
///   copied.
/// Returns N..×D in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array sigmoid_gate(const mx::array& x, const mx::array& gate, mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
