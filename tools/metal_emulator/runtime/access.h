// Load and store hooks of instrumented kernels.
#pragma once
#include "memory.h"

namespace msl {

struct Access {
    uint32_t size;
    bool writes, atomic;
    const void* pc;
};

// Each instrumented mode implements these functions: see watch_races.cpp and watch_counts.cpp.
void start_watching();  // called after the buffers are bound
void watch_device(Buffer& buffer, uint64_t offset, const Access& access);
void watch_threadgroup(uint64_t offset, const Access& access);

}  // namespace msl
