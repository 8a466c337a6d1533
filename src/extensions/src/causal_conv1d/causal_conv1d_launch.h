// Launch of causal_conv1d.metal: one thread per channel, sequences along y.
#pragma once

#include "common/metal_launch.h"
#include "src/causal_conv1d/causal_conv1d_params.h"

namespace tiny_llm_ext {

/// Buffers: x T×C (strided rows), weight C×K (strided), cu_seqlens B+1, read_slots B, write_slots
/// T; states S×(K−1)×C, y T×C.
MetalLaunch causal_conv1d_launch(const CausalConv1dParams& params, Format format,
                                 Format weight_format, int max_threads);

}  // namespace tiny_llm_ext
