// Launch of add_bias.metal: threadgroups along a row, rows along y.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers, for M rows of O outputs: x M×O (rows x_stride elements apart), bias O, out M×O.
MetalLaunch add_bias_launch(int64_t M, int O, int64_t x_stride, Format format, int max_threads);

}  // namespace tiny_llm_ext
