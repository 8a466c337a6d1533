// All modes except "loose": the processor's IEEE arithmetic.
#include "arithmetic.h"

namespace msl {
void begin_arithmetic(uint32_t) {}
}  // namespace msl
