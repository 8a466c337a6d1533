// Activation functions for Metal kernels, in float32.
#pragma once

#include <metal_stdlib>

namespace tiny_llm_ext {

/// 1 / (1 + e⁻ˣ). Computed from e⁻|x|, which is at most 1, to avoid overflow and cancellation.
inline float sigmoid(float x) {
    const float power = metal::exp(-metal::abs(x));
    return (x < 0.0f ? power : 1.0f) / (1.0f + power);
}

/// x · sigmoid(x).
inline float silu(float x) { return x * sigmoid(x); }

/// GELU with a tanh, as x · sigmoid(2u): ½·x·(1 + tanh u) for u = √(2/π)·(x + 0.044715·x³).
inline float gelu_tanh(float x) { return x * sigmoid(1.5957691f * (x + 0.044715f * x * x * x)); }

}  // namespace tiny_llm_ext
