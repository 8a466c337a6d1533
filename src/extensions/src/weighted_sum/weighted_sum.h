// weighted_sum: Sum of a token's expert outputs, weighted by the router.
//
//     out[n, e] = base[n, e] + Σ_k weights[n, k] · x[n, k, e]
//
// Computed in float32, and rounded once to the dtype of x. On the CPU, terms are added in the order
// of k, with separately rounded products and sums (no FMA).
#pragma once

#include <optional>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// base + Σ_k weights[.., k] · x[.., k, :], summed in float32.
///
/// x: N..×K×E, float32, float16 or bfloat16. weights: N..×K, float32.
/// base: N..×E, dtype of x, for example the output of a shared expert; zeros if None.
/// Returns N..×E in the dtype of x. Throws std::invalid_argument for any other arguments.
mx::array weighted_sum(const mx::array& x, const mx::array& weights,
                       const std::optional<mx::array>& base = std::nullopt,
                       mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
