// What instrumented kernels report: every load and store of theirs.
#pragma once
#include "memory.h"

namespace msl {

struct Access {
    uint32_t size;
    bool writes, atomic;
    const void* pc;
};

// Each mode that watches has its own version of these three.
void start_watching();  // when the buffers are bound
void watch_device(Buffer& buffer, uint64_t offset, const Access& access);
void watch_threadgroup(uint64_t offset, const Access& access);

}  // namespace msl
