// Fixed-point activations: 16-bit integers with one step per group, a[i] ≈ step · A[i].
//
// The step is a power of two, so only A is rounded. It is the smallest with |A| < 255/128 · 2¹⁴, so
// that A = 256 · high + low fits two signed bytes, for the kernels that multiply bytes.
// quantized_matmul_fixed_point_simd.cpp bounds the error. A group with NaN or infinity has a step
// of NaN.
//
// The integers, and therefore their sums of products, are the same on every instruction set.
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int MAX_GROUP = 128;

// Factors of a group of a row.
struct Factors {
    float step;
    float sum;  // step · Σ A
};

// One group of a row.
struct RoundedGroup {
    Ints integers[MAX_GROUP / LANES];  // in the order of the group's elements
    Factors factors;
};

// Maximum magnitude, as float32 bits, whose order is that of the values.
inline int largest_magnitude(const Floats* a, int count) {
    Ints largest = {};
    for (int v = 0; v < count; v++) {
        const Ints magnitude = as_ints(a[v]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return max(largest);
}

// Step of 16-bit integers, and its inverse: powers of two, so that only the division by the step
// rounds.
inline void step_of_16_bits(int largest, float* step, float* inverse) {
    int exponent = (largest + 0x10000) >> 23;  // a mantissa ≥ 255/128 rounds up to 2
    exponent = exponent < 30 ? 30 : exponent;  // keeps the step normal
    *inverse = bits_to_float(static_cast<uint32_t>(254 + 14 - exponent) << 23);
    *step = bits_to_float(static_cast<uint32_t>(exponent - 14) << 23);
}

// Step of 8-bit integers, the largest magnitude / 127, and its inverse.
inline void step_of_8_bits(int largest, float* step, float* inverse) {
    constexpr int SMALLEST = 30 << 23;  // 2⁻⁹⁷: keeps the inverse finite
    const float magnitude =
        bits_to_float(static_cast<uint32_t>(largest < SMALLEST ? SMALLEST : largest));
    *step = magnitude / 127.0f;
    *inverse = 127.0f / magnitude;
}

// Rounds group g of row m to integers.
inline void round_group(const QuantizedMatmulJob& job, int64_t m, int64_t g,
                        RoundedGroup& rounded) {
    Floats a[MAX_GROUP / LANES];
    const int count = job.group_size / LANES;
    for (int v = 0; v < count; v++) {
        a[v] = load(job.a, m * job.I + g * job.group_size + v * LANES, job.format);
    }
    const int largest = largest_magnitude(a, count);
    const bool finite = largest < 0x7f800000;
    float step, inverse;
    (job.activation_bits == 8 ? step_of_8_bits : step_of_16_bits)(largest, &step, &inverse);
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
    Ints sums = {};
    for (int v = 0; v < count; v++) {
        const Floats shifted = (finite ? a[v] * inverse : Floats{}) + magic;
        rounded.integers[v] = as_ints(shifted) - as_ints(magic);
        sums += rounded.integers[v];
    }
    rounded.factors = {step, step * static_cast<float>(sum(sums))};
    if (!finite) {
        rounded.factors = {__builtin_nanf(""), __builtin_nanf("")};
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
