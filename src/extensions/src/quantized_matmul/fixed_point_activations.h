// Activations as 16-bit integers, group by group: the first step of
// quantized_matmul_fixed_point.cpp.
#pragma once

#include "src/quantized_matmul/fixed_point_vectors.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int MAX_GROUP = 128;

// A row of float16 is the sum of two rows of integers.
inline int rows_of_integers(Format format) { return format == Format::float16 ? 2 : 1; }

// What a group of a row of integers is multiplied by.
struct Factors {
    float step;
    float sum;  // step · Σ A
};

// The prepared activations: R = M · rows_of_integers rows, a group of all of them after the other.
struct Activations {
    int64_t R, group_size;
    int16_t* integers;  // groups × R × group_size
    Factors* factors;   // groups × R

    Activations(const QuantizedMatmulJob& job, void* scratch)
        : R(job.M * rows_of_integers(job.format)),
          group_size(job.group_size),
          integers(static_cast<int16_t*>(scratch)),
          factors(reinterpret_cast<Factors*>(integers + R * job.I)) {}

    const Shorts* group(int64_t g, int64_t r) const {
        return reinterpret_cast<const Shorts*>(integers + (g * R + r) * group_size);
    }
};

// Where unpacking leaves element i of a group. Bytes with two 4-bit numbers unpack to a vector of
// the even ones and a vector of the odd ones.
inline int place_of(int i, int bits) {
    const int run = i / (2 * SHORTS) * (2 * SHORTS);
    return bits == 8 ? i : run + i % 2 * SHORTS + (i - run) / 2;
}

// The exponent of the largest magnitude, as float32 stores it: 255 with NaN or infinity among them.
inline int largest_exponent(const Floats* a, int count) {
    Ints largest = {};
    for (int v = 0; v < count; v++) {
        const Ints magnitude = as_ints(a[v]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) {
        bits = largest[i] > bits ? largest[i] : bits;
    }
    return bits >> 23;
}

// One row of integers for a group a[0 … group_size), in units of the step; what it leaves of a is
// written back to a.
void round_group(const QuantizedMatmulJob& job, Floats* a, int16_t* integers, float step,
                 Factors& factors) {
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to a whole number
    Ints whole[MAX_GROUP / LANES], sums = {};
    for (int v = 0; v < job.group_size / LANES; v++) {
        const Floats shifted = a[v] + magic;
        whole[v] = as_ints(shifted) - as_ints(magic);
        sums += whole[v];
        a[v] -= shifted - magic;
    }
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) {
        sum += sums[i];
    }
    factors = {step, step * static_cast<float>(sum)};
    for (int i = 0; i < job.group_size; i++) {
        integers[place_of(i, job.bits)] = static_cast<int16_t>(whole[i / LANES][i % LANES]);
    }
}

void prepare_group(const QuantizedMatmulJob& job, const Activations& to, int64_t m, int64_t g) {
    Floats a[MAX_GROUP / LANES];
    const int count = job.group_size / LANES;
    for (int v = 0; v < count; v++) {
        a[v] = load(job.a, m * job.I + g * job.group_size + v * LANES, job.format);
    }
    int exponent = largest_exponent(a, count);
    const bool finite = exponent < 255;
    exponent = exponent < 30 ? 30 : exponent;  // the steps of both rows are normal numbers
    const float inverse = bits_to_float(static_cast<uint32_t>(254 + 14 - exponent) << 23);
    float step = bits_to_float(static_cast<uint32_t>(exponent - 14) << 23);
    for (int v = 0; v < count; v++) {
        a[v] = finite ? a[v] * inverse : Floats{};
    }
    const int rows = rows_of_integers(job.format);
    for (int row = 0; row < rows; row++) {
        const int64_t at = g * to.R + m * rows + row;
        round_group(job, a, to.integers + at * job.group_size, step, to.factors[at]);
        if (!finite) {
            to.factors[at] = {__builtin_nanf(""), __builtin_nanf("")};
        }
        step *= 0x1p-15f;
        for (int v = 0; v < count; v++) {
            a[v] *= 0x1p15f;
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
