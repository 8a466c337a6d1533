// Launch of qk_norm_rope.metal: one simdgroup per head.
#pragma once

#include "common/metal_launch.h"
#include "src/qk_norm_rope/qk_norm_rope_params.h"

namespace tiny_llm_ext {

/// Buffers: x (strided), weight D, cos and sin (B or 1)×L×W, out B×H×L×D.
MetalLaunch qk_norm_rope_launch(const QkNormRopeParams& params, Format format, int max_threads);

}  // namespace tiny_llm_ext
