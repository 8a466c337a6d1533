// swiglu on the GPU: four adjacent elements per thread. Contract: swiglu.h.
#include <metal_stdlib>

#include "src/swiglu/swiglu_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// x · sigmoid(x), rounded to T after each step. e^−|x| never overflows; sigmoid(−x) = 1 −
// sigmoid(x).
template <typename T>
float silu(float x) {
    const float power = float(T(exp(-abs(x))));
    const float positive = float(T(1.0f / float(T(1.0f + power))));
    const float sigmoid = x < 0.0f ? float(T(1.0f - positive)) : positive;
    return float(T(x * sigmoid));
}

template <typename T>
[[kernel]] void swiglu_elements(device const T* gate [[buffer(0)]],
                                device const T* up [[buffer(1)]], device T* out [[buffer(2)]],
                                constant const SwigluParams& params [[buffer(3)]],
                                uint2 position [[thread_position_in_grid]]) {
    const long m = position.y;
    const int first = int(position.x) * SWIGLU_READS;
    device const T* gate_row = gate + m * params.gate_stride;
    device const T* up_row = up + m * params.up_stride;
    device T* out_row = out + m * params.I;
    for (int i = first; i < min(first + SWIGLU_READS, params.I); i++) {
        out_row[i] = T(silu<T>(float(gate_row[i])) * float(up_row[i]));
    }
}

#define INSTANTIATE(name, T)                                                             \
    template [[host_name("swiglu_elements_" #name)]] [[kernel]] void swiglu_elements<T>( \
        device const T*, device const T*, device T*, constant const SwigluParams&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
