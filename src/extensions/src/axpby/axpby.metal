// axpby on the GPU: a thread an element. axpby.h has the contract, axpby_launch.cpp the grid.
#include <metal_stdlib>

#include "src/axpby/axpby_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// z[i] = alpha · x[i] + beta · y[i], in float32, rounded once to T. The grid is made of whole
// threadgroups, so the last one may have threads beyond the end.
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

// A template becomes a kernel by being instantiated, under the name that the host asks for.
#define INSTANTIATE(name, T)                                                           \
    template [[host_name("axpby_elements_" #name)]] [[kernel]] void axpby_elements<T>( \
        device const T*, device const T*, device T*, constant const AxpbyParams&, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
