// Modes "plain", "asan" and "loose": loads and stores are neither checked for races nor counted.
#include "access.h"
#include "counters.h"

namespace msl {
Counters counters;
void start_watching() {}
void write_counters() {}
}  // namespace msl

void msl_atomic(const volatile void*, uint32_t, bool, void*) {}
void msl_matrix_multiply_accumulated() {}
