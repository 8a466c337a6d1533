// Rounds to bfloat, to nearest even. Compilers call this function, which old versions of libgcc
// lack.
#include <stdint.h>
#include <string.h>

extern "C" __bf16 __truncsfbf2(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    bits = is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    const uint16_t high = (uint16_t)(bits >> 16);
    __bf16 result;
    memcpy(&result, &high, sizeof result);
    return result;
}
