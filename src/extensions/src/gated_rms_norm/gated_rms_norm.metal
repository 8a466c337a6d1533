// gated_rms_norm on the GPU: one simdgroup per row. Contract: gated_rms_norm.h.
#include <metal_stdlib>

#include "common/metal_row_params.h"
#include "common/metal_sigmoid.h"

using namespace metal;
using namespace tiny_llm_ext;

// T: dtype of z and out. W: dtype of the weight.
template <typename T, typename W>
[[kernel]] void gated_rms_norm_row(
    device const float* o [[buffer(0)]], device const T* z [[buffer(1)]],
    device const W* weight [[buffer(2)]], device T* out [[buffer(3)]],
    constant const RowParams& params [[buffer(4)]], uint group [[threadgroup_position_in_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
    const long m = long(group) * simdgroups + simdgroup;
    if (m >= params.M) {
        return;  // all lanes of the simdgroup return
    }
    device const float* row = o + m * params.strides[0];
    float squares = 0;
    for (int d = int(lane); d < params.D; d += 32) {
        squares += row[d] * row[d];
    }
    const float factor = 1.0f / sqrt(simd_sum(squares) / float(params.D) + params.eps);
    for (int d = int(lane); d < params.D; d += 32) {
        const float gate = silu(float(z[m * params.strides[1] + d]));
        out[m * params.D + d] = T(row[d] * factor * float(weight[d]) * gate);
    }
}

#define INSTANTIATE(name, T, W)                                                                   \
    template [[host_name("gated_rms_norm_row_" #name)]] [[kernel]] void gated_rms_norm_row<T, W>( \
        device const float*, device const T*, device const W*, device T*,                         \
        constant const RowParams&, uint, uint, uint, uint);

INSTANTIATE(float32, float, float)
INSTANTIATE(float16, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat)
INSTANTIATE(float16_weight_float32, half, float)
INSTANTIATE(bfloat16_weight_float32, bfloat, float)
