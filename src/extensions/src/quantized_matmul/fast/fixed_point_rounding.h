// Activations as 16-bit integers, group by group: a[i] ≈ step · A[i].
//
// The step is a power of two, so that nothing but A is rounded: the smallest with
// |A| < 255/128 · 2¹⁴, and so with A = 256 · high + low in two signed bytes, for the kernels that
// multiply bytes. quantized_matmul_avx2_neon.cpp says what that costs in precision. float16
// numbers (11 bits) get a second row of integers for what the first one leaves, with steps 2¹⁵
// times smaller. A group with NaN or infinity has a step of NaN.
//
// The integers, and so all sums of products with them, are the same on every instruction set.
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int MAX_GROUP = 128;
constexpr int MAX_ROWS_OF_INTEGERS = 2;

// A row of float16 is the sum of two rows of integers.
inline int rows_of_integers(Format format) { return format == Format::float16 ? 2 : 1; }

// What a group of a row of integers is multiplied by.
struct Factors {
    float step;
    float sum;  // step · Σ A
};

// A group of one row of integers.
struct RoundedGroup {
    Ints integers[MAX_GROUP / LANES];  // in the order of i
    Factors factors;
};

// The largest magnitude, as float32's bits, which are in the order of the numbers.
inline int largest_magnitude(const Floats* a, int count) {
    Ints largest = {};
    for (int v = 0; v < count; v++) {
        const Ints magnitude = as_ints(a[v]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return max(largest);
}

// Rounds a[0 … group_size), in units of the step; what that leaves of a is written back to a.
inline void round_once(Floats* a, int count, float step, RoundedGroup& rounded) {
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to a whole number
    Ints sums = {};
    for (int v = 0; v < count; v++) {
        const Floats shifted = a[v] + magic;
        rounded.integers[v] = as_ints(shifted) - as_ints(magic);
        sums += rounded.integers[v];
        a[v] -= shifted - magic;
    }
    rounded.factors = {step, step * static_cast<float>(sum(sums))};
}

// Rounds group g of row m to rows_of_integers(format) rows.
inline void round_group(const QuantizedMatmulJob& job, int64_t m, int64_t g,
                        RoundedGroup* rounded) {
    Floats a[MAX_GROUP / LANES];
    const int count = job.group_size / LANES;
    for (int v = 0; v < count; v++) {
        a[v] = load(job.a, m * job.I + g * job.group_size + v * LANES, job.format);
    }
    const int largest = largest_magnitude(a, count);
    const bool finite = largest < 0x7f800000;
    int exponent = (largest + 0x10000) >> 23;  // 255/128 and more counts as 2
    exponent = exponent < 30 ? 30 : exponent;  // the steps of both rows are normal numbers
    const float inverse = bits_to_float(static_cast<uint32_t>(254 + 14 - exponent) << 23);
    float step = bits_to_float(static_cast<uint32_t>(exponent - 14) << 23);
    for (int v = 0; v < count; v++) {
        a[v] = finite ? a[v] * inverse : Floats{};
    }
    for (int row = 0; row < rows_of_integers(job.format); row++) {
        round_once(a, count, step, rounded[row]);
        if (!finite) {
            rounded[row].factors = {__builtin_nanf(""), __builtin_nanf("")};
        }
        step *= 0x1p-15f;
        for (int v = 0; v < count; v++) {
            a[v] *= 0x1p15f;
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
