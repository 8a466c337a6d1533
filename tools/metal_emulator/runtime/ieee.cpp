// All modes but "loose": what the processor does by itself is right.
#include "arithmetic.h"

namespace msl {
void begin_arithmetic(uint32_t) {}
}  // namespace msl
