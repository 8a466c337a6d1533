// swiglu: Gated activation of the MLP.
//
//     out[n, i] = silu(gate[n, i]) · up[n, i],   silu(x) = x · sigmoid(x)
//
// Rounded to the arrays' dtype after each step, as in tiny_llm.basics.silu(gate) * up, so that a
// model's output is the same with and without this operation.
#pragma once

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// silu(gate) · up, elementwise.
///
/// gate, up: N..×I, same shape and dtype: float32, float16 or bfloat16.
/// Returns N..×I in the dtype of gate. Throws std::invalid_argument for any other arguments.
mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
