// Launch of sigmoid_gate.metal: elements of a row along x, rows along y.
#pragma once

#include "common/metal_launch.h"
#include "src/sigmoid_gate/sigmoid_gate_params.h"

namespace tiny_llm_ext {

/// Buffers: x and gate M×D (strided rows; gate M×1 if gate_step is 0), out M×D.
MetalLaunch sigmoid_gate_launch(int64_t M, const SigmoidGateParams& params, Format format,
                                int max_threads);

}  // namespace tiny_llm_ext
