// Launches of rms_norm.metal: one threadgroup per row.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: x (M rows of D, x_stride elements apart), weight D, out M×D.
MetalLaunch rms_norm_launch(int64_t M, int D, float eps, int64_t x_stride, Format format,
                            int max_threads);

/// Buffers: x and y (M rows of D, strided), weight D, sum M×D, out M×D.
MetalLaunch add_rms_norm_launch(int64_t M, int D, float eps, int64_t x_stride, int64_t y_stride,
                                Format format, int max_threads);

}  // namespace tiny_llm_ext
