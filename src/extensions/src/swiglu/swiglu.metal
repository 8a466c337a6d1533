// swiglu on the GPU: four adjacent elements per thread. Contract: swiglu.h.
#include <metal_stdlib>

#include "src/swiglu/swiglu_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// x · sigmoid(x), rounded to T after each step. With z = e^−|x|, which never overflows, sigmoid(x)
// is 1/(1 + z) for x ≥ 0 and z/(1 + z) for x < 0; 1 − 1/(1 + z) would lose precision.
template <typename T>
float silu(float x) {
    const float z = float(T(exp(-abs(x))));
    const float sigmoid = float(T((x < 0.0f ? z : 1.0f) / float(T(1.0f + z))));
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
