// The mode "loose": chance decides, by the launch's seed, what Metal leaves open.
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "arithmetic.h"
#include "interface.h"

static uint32_t seed_of_launch = 0;

static uint32_t mixed(uint32_t x) {  // every bit of x changes half of the result's
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

void msl::begin_arithmetic(uint32_t seed) {
    seed_of_launch = mixed(seed + 0x9e3779b9u);
    // Denormals are zero, as operands and as results.
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t control;
    __asm__("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | 1 << 24));
#endif
}

// A GPU does the same each time: what chance decides is fixed for a launch.
uint32_t msl_choice(uint32_t number) { return mixed(number ^ seed_of_launch); }

// A compiler decides for each place in the code, not for each execution.
bool msl_contracts(uint32_t place) { return msl_choice(place) & 1; }

// x, moved by up to 4 of its last places, and the same x by as many. Zero, infinity and NaN stay.
float msl_approximate(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t moved = bits + (int32_t)(msl_choice((uint32_t)bits) % 9) - 4;
    float result;
    memcpy(&result, &moved, sizeof result);
    const bool has_neighbours = isnormal(x) && isnormal(result) && signbit(x) == signbit(result);
    return has_neighbours ? result : x;
}
