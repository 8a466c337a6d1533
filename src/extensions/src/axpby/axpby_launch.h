// How axpby.metal is started.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// Buffers: x, y, z, of `size` elements each.
MetalLaunch axpby_launch(int64_t size, float alpha, float beta, Format format, int max_threads);

}  // namespace tiny_llm_ext
