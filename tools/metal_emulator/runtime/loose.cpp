// Mode "loose": randomizes everything that Metal leaves unspecified, by the launch's seed.
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "arithmetic.h"
#include "interface.h"

static uint32_t seed_of_launch = 0;

static uint32_t mixed(uint32_t x) {  // avalanche hash
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

void msl::begin_arithmetic(uint32_t seed) {
    seed_of_launch = mixed(seed + 0x9e3779b9u);
    // Flushes denormal operands and results to zero.
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    uint64_t control;
    __asm__("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | 1 << 24));
#endif
}

// The random choices are fixed within a launch, as a GPU's unspecified choices are.
uint32_t msl_choice(uint32_t number) { return mixed(number ^ seed_of_launch); }

// One choice per code location, because fusion is decided at compile time.
bool msl_contracts(uint32_t place) { return msl_choice(place) & 1; }

// Perturbs x by up to 4 ulps, equal values of x equally. Zero, infinity and NaN are unchanged.
float msl_approximate(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t moved = bits + (int32_t)(msl_choice((uint32_t)bits) % 9) - 4;
    float result;
    memcpy(&result, &moved, sizeof result);
    const bool has_neighbors = isnormal(x) && isnormal(result) && signbit(x) == signbit(result);
    return has_neighbors ? result : x;
}
