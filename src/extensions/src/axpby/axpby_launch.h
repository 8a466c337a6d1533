// Launch of axpby.metal.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: x, y, z, of `size` elements each. Throws std::invalid_argument if `size` exceeds 2³¹ −
/// 1,025.
MetalLaunch axpby_launch(int64_t size, float alpha, float beta, Format format, int max_threads);

}  // namespace tiny_llm_ext
