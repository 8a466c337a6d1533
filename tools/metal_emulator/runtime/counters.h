// Counters of a launch. ../README.md defines the units.
#pragma once
#include "interface.h"

namespace msl {

struct Counters {
    uint64_t threads, simd_operations, barriers, matrix_multiply_adds;
    // The following counts are 0 except in mode "count".
    uint64_t threadgroup_read, threadgroup_written, threadgroup_accesses;
    uint64_t multiply_adds, integer_multiplies, integer_divisions, integer_operations, conversions;
};
extern Counters counters;

inline void count_threads(uint32_t n) { counters.threads += n; }
inline void count_simd_operation() { ++counters.simd_operations; }
inline void count_barrier() { ++counters.barriers; }
void write_counters();

}  // namespace msl
