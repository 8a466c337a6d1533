// Floating-point behavior of a launch: IEEE, or random within what Metal allows (mode "loose").
#pragma once
#include <stdint.h>

namespace msl {

// Implemented in ieee.cpp, and in loose.cpp for the mode "loose".
void begin_arithmetic(uint32_t seed);

}  // namespace msl
