// Launch of quantized_embedding.metal: one thread per id and uint32 of its weight row.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: ids N, scales and biases V×(E/group_size), weight V×(E·bits/32), out N×E.
MetalLaunch quantized_embedding_launch(int64_t N, int V, int E, int group_size, int bits,
                                       bool ids_are_signed, Format format, int max_threads);

}  // namespace tiny_llm_ext
