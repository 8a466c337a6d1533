// Launch of swiglu.metal: elements of a row along x, rows along y.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: gate and up M×I (strided rows), out M×I.
MetalLaunch swiglu_launch(int64_t M, int I, int64_t gate_stride, int64_t up_stride, Format format,
                          int max_threads);

}  // namespace tiny_llm_ext
