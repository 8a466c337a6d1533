// Memory that a kernel works in.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

/// Room for that many floats, from the beginning of a cache line. It belongs to the calling thread,
/// stays from one call to the next, and holds whatever the last kernel left there.
float* thread_scratch(int64_t floats);

}  // namespace tiny_llm_ext
