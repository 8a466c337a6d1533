// add_bias on the GPU: four adjacent elements per thread. Contract: add_bias.h.
#include <metal_stdlib>

#include "src/add_bias/add_bias_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void add_bias_elements(device const T* x [[buffer(0)]],
                                  device const T* bias [[buffer(1)]], device T* out [[buffer(2)]],
                                  constant const AddBiasParams& params [[buffer(3)]],
                                  uint2 position [[thread_position_in_grid]]) {
    const long m = position.y;
    const int first = int(position.x) * ADD_BIAS_READS;
    device const T* x_row = x + m * params.x_stride;
    device T* out_row = out + m * params.O;
    for (int i = first; i < min(first + ADD_BIAS_READS, params.O); i++) {
        out_row[i] = T(float(x_row[i]) + float(bias[i]));
    }
}

#define INSTANTIATE(name, T)                                                                 \
    template [[host_name("add_bias_elements_" #name)]] [[kernel]] void add_bias_elements<T>( \
        device const T*, device const T*, device T*, constant const AddBiasParams&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
