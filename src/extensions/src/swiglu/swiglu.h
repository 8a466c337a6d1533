// swiglu: Gated activation of the MLP.
//
//     out[n, i] = act(gate[n, i]) · up[n, i]
//
// act is silu(x) = x · sigmoid(x) or, for a GeGLU, GELU in its approximation with a tanh. gpt-oss
// clamps both inputs, with g = min(gate, 7) and u = max(−7, min(up, 7)):
//
//     out = g · sigmoid(1.702 · g) · (u + 1)
//
// silu is rounded to the arrays' dtype after each step, as in tiny_llm.basics.silu(gate) * up, so
// that a model's output is the same with and without this operation. GELU is rounded once, as in
// PyTorch. gpt-oss's function is rounded at the end only.
#pragma once

#include <string>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// act(gate) · up, elementwise; for "swigluoai", gpt-oss's function of gate and up.
///
/// gate, up: N..×I, same shape and dtype: float32, float16 or bfloat16.
/// activation: "silu", "gelu_tanh" or "swigluoai".
/// Returns N..×I in the dtype of gate. Throws std::invalid_argument for any other arguments.
mx::array swiglu(const mx::array& gate, const mx::array& up, const std::string& activation = "silu",
                 mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
