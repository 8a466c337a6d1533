#include "common/scratch.h"

#include <memory>

namespace tiny_llm_ext {

float* thread_scratch(int64_t floats) {
    thread_local std::unique_ptr<char[]> memory;
    thread_local int64_t capacity = 0;
    const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)) + 64;
    if (bytes > capacity) {
        memory = std::make_unique_for_overwrite<char[]>(bytes);
        capacity = bytes;
    }
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) & ~63);
}

}  // namespace tiny_llm_ext
