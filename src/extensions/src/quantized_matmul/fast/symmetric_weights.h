// Weights without biases, for kernels that multiply unsigned integers q:
//
//     weight = (q − zero) · scale = q · scale − zero · scale
//
// Symmetric integers have the zero point 2^(bits − 1). Floating-point (e2m1) weights become
// integers by doubling, and non-negative by adding 12: q = 2 · value + 12, with half the scale.
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int8_t OFFSET = 12;

// 2 · value + 12, indexed by the value's bits: TWICE_E2M1 + OFFSET.
[[maybe_unused]] constexpr uint8_t E2M1_INTEGERS[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                        12, 11, 10, 9,  8,  6,  4,  0};

// Scale and bias of integers that share a stored scale.
struct ScaleAndBias {
    Floats scale, bias;
};
inline ScaleAndBias symmetric_factors(const QuantizedMatmulJob& job, Floats stored_scale) {
    const Floats scale = job.is_e2m1 ? 0.5f * stored_scale : stored_scale;
    const float zero = job.is_e2m1 ? OFFSET : job.bits == 4 ? 8 : 128;
    return {scale, -zero * scale};
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
