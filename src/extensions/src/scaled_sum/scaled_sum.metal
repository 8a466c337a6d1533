// scaled_sum on the GPU: four adjacent elements per thread. Contract: scaled_sum.h.
#include <metal_stdlib>

#include "common/metal_row_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void scaled_sum_elements(device const T* x [[buffer(0)]],
                                    device const T* y [[buffer(1)]], device T* out [[buffer(2)]],
                                    constant const RowParams& params [[buffer(3)]],
                                    uint2 position [[thread_position_in_grid]]) {
    const long m = position.y;
    const int first = int(position.x) * ROW_READS;
    for (int i = first; i < min(first + ROW_READS, params.D); i++) {
        const T sum = T(float(x[m * params.strides[0] + i]) + float(y[m * params.strides[1] + i]));
        out[m * params.D + i] = T(float(sum) * params.scale);
    }
}

#define INSTANTIATE(name, T)                                                                     \
    template [[host_name("scaled_sum_elements_" #name)]] [[kernel]] void scaled_sum_elements<T>( \
        device const T*, device const T*, device T*, constant const RowParams&, uint2);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
