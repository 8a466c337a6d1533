// How the kernels of add_bias.metal are started: threadgroups along a row, rows along y.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: x (M rows of O, at its stride), bias O, out M×O.
MetalLaunch add_bias_launch(int64_t M, int O, int64_t x_stride, Format format, int max_threads);

}  // namespace tiny_llm_ext
