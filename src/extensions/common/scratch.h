// Scratch memory of kernels.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

/// Thread-local scratch for that many floats, aligned to a cache line. Reused between calls and
/// uninitialized.
float* thread_scratch(int64_t floats);

}  // namespace tiny_llm_ext
