// 4-bit floating-point weights for kernels that multiply unsigned integers: doubling makes each
// value an integer, and adding 12 makes it non-negative.
//
//     value · scale = (2 · value + 12) · scale/2 − 6 · scale
//
// They are therefore affine weights, with the scale scale/2 and the bias −6 · scale.
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int8_t OFFSET = 12;

// 2 · value + 12, indexed by the value's bits: TWICE_E2M1 + OFFSET.
[[maybe_unused]] constexpr uint8_t E2M1_INTEGERS[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                        12, 11, 10, 9,  8,  6,  4,  0};

inline Floats affine_bias(Floats scale) { return -6.0f * scale; }
inline Floats affine_scale(Floats scale) { return 0.5f * scale; }

// Converts scales of floating-point weights to scales and biases of integers.
inline void make_affine(Floats* scales, Floats* biases, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        biases[i] = affine_bias(scales[i]);
        scales[i] = affine_scale(scales[i]);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
