// axpby on the GPU: one thread per element. Contract: axpby.h; grid: axpby_launch.cpp.
#include <metal_stdlib>

#include "src/axpby/axpby_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// z[i] = alpha · x[i] + beta · y[i], in float32, rounded once to T. The grid consists of whole
// threadgroups, so the last one may have threads with i ≥ size.
template <typename T>
[[kernel]] void axpby_elements(device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
                               device T* z [[buffer(2)]],
                               constant const AxpbyParams& params [[buffer(3)]],
                               uint i [[thread_position_in_grid]]) {
    // [task 1.7.2 metal]
    if (int(i) < params.size) {
        z[i] = T(params.alpha * float(x[i]) + params.beta * float(y[i]));
    }
    // [/task 1.7.2 metal]
}

// Instantiating a template creates a kernel, under the name used by the host.
#define INSTANTIATE(name, T)                                                           \
    template [[host_name("axpby_elements_" #name)]] [[kernel]] void axpby_elements<T>( \
        device const T*, device const T*, device T*, constant const AxpbyParams&, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
