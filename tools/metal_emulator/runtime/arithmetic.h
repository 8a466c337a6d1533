// How a launch computes with floats: exactly as IEEE says, or as loosely as a GPU may.
#pragma once
#include <stdint.h>

namespace msl {

// Each of the two has its own version: ieee.cpp, and loose.cpp for the mode "loose".
void begin_arithmetic(uint32_t seed);

}  // namespace msl
