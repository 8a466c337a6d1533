// topk_softmax: Router of a mixture of experts.
//
//     p = softmax(logits)   over all X experts
//     experts = indices of the K largest p
//     weights = p[experts], divided by their sum if `normalize`, times the experts' scales, if any
//
// Computed in float32 for any dtype of the logits, and not rounded to that dtype.
#pragma once

#include <optional>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Top K experts of each token in descending order, and their weights.
///
/// logits: N..×X, float32, float16 or bfloat16. Ties go to the lower expert index, and NaN counts
/// as the largest logit. k: K, 1 to X. normalize: whether the K weights are scaled to sum to 1.
/// expert_scales: X, float32, optional.
/// Returns experts N..×K, uint32, and weights N..×K, float32. Throws std::invalid_argument for
/// any other arguments.
std::pair<mx::array, mx::array> topk_softmax(const mx::array& logits, int k, bool normalize,
                                             const std::optional<mx::array>& expert_scales = {},
                                             mx::StreamOrDevice s = {});

}  // namespace tiny_llm_ext
