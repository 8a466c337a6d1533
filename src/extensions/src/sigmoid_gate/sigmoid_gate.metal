// sigmoid_gate on the GPU: one thread per element. Contract: sigmoid_gate.h.
#include <metal_stdlib>

#include "common/metal_sigmoid.h"
#include "src/sigmoid_gate/sigmoid_gate_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void sigmoid_gate_elements(device const T* x [[buffer(0)]],
                                      device const T* gate [[buffer(1)]],
                                      device T* out [[buffer(2)]],
                                      constant const SigmoidGateParams& params [[buffer(3)]],
                                      uint2 position [[thread_position_in_grid]]) {
    const long m = position.y;
    const int d = int(position.x);
    if (d < params.D) {
        const long at = m * params.gate_stride + d * params.gate_step;
        const float gated = float(x[m * params.x_stride + d]) * sigmoid(float(gate[at]));
        out[m * params.D + d] = T(gated);
    }
}

#define INSTANTIATE(name, T)                                               \
    template [[host_name("sigmoid_gate_elements_" #name)]] [[kernel]] void \
    sigmoid_gate_elements<T>(device const T*, device const T*, device T*,  \
                             constant const SigmoidGateParams&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
