// Scratch memory of kernels.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

/// Thread-local, uninitialized scratch memory for `floats` floats, aligned to a cache line. Valid
/// until the thread's next call.
float* thread_scratch(int64_t floats);

}  // namespace tiny_llm_ext
