// Launch of gated_rms_norm.metal: one simdgroup per row.
#pragma once

#include "common/metal_launch.h"
#include "src/gated_rms_norm/gated_rms_norm_params.h"

namespace tiny_llm_ext {

/// Buffers, for M rows of D elements: o and z M×D (strided rows), weight D, out M×D.
MetalLaunch gated_rms_norm_launch(const GatedRmsNormParams& params, Format format,
                                  Format weight_format, int max_threads);

}  // namespace tiny_llm_ext
