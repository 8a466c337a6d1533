// qk_norm_rope on the GPU: one simdgroup per head. Contract: qk_norm_rope.h.
#include <metal_stdlib>

#include "src/qk_norm_rope/qk_norm_rope_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// Pairs that a lane keeps in registers between its two passes over a head: enough for D ≤ 256.
// Later pairs are read from memory again.
constant constexpr int REGISTER_PAIRS = 4;

// Indices of the elements of pair i, of D/2 pairs. The first W pairs are rotated; the other pairs
// are only normalized.
int2 elements_of(int i, constant const QkNormRopeParams& params) {
    return i < params.W ? int2(i, i + params.W) : int2(i + params.W, i + params.D / 2);
}

template <typename T>
float2 read_pair(device const T* row, int2 at) {
    return float2(float(row[at.x]), float(row[at.y]));
}

// Normalizes pair i if there is a norm, rotates it by angle i if i < W, and stores it.
template <typename T, typename W>
void rotate_pair(float2 x, float factor, int i, device const W* weight, device const float* cosines,
                 device const float* sines, device T* out,
                 constant const QkNormRopeParams& params) {
    const int2 at = elements_of(i, params);
    float2 n = x;
    if (params.normalizes) {
        n.x = float(T(float(W(x.x * factor)) * float(weight[at.x])));
        n.y = float(T(float(W(x.y * factor)) * float(weight[at.y])));
    }
    if (i < params.W) {
        const float c = cosines[i], s = sines[i];
        n = float2(n.x * c - n.y * s, n.x * s + n.y * c);
    }
    out[at.x] = T(n.x);
    out[at.y] = T(n.y);
}

template <typename T, typename W>
[[kernel]] void qk_norm_rope_head(
    device const T* x [[buffer(0)]], device const W* weight [[buffer(1)]],
    device const float* cosines [[buffer(2)]], device const float* sines [[buffer(3)]],
    device T* out [[buffer(4)]], constant const QkNormRopeParams& params [[buffer(5)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    // A token's heads are adjacent, so neighboring simdgroups read the same angles.
    const long head = long(group) * simdgroups + simdgroup;
    const long token = head / params.H;
    const long b = token / params.L;
    if (b >= params.B) {
        return;  // all lanes of the simdgroup return
    }
    const int h = int(head % params.H), l = int(token % params.L);
    const int half_size = params.D / 2;
    device const T* row =
        x + b * params.x_strides[0] + l * params.x_strides[1] + h * params.x_strides[2];
    const long angles = b * params.angle_stride + long(l) * params.W;
    device T* out_row = out + ((b * params.H + h) * params.L + l) * params.D;

    float2 pairs[REGISTER_PAIRS];
    float squares = 0;
    for (int k = 0; k < REGISTER_PAIRS; k++) {
        const int i = int(lane) + k * 32;
        pairs[k] = i < half_size ? read_pair(row, elements_of(i, params)) : float2(0.0f);
        squares += dot(pairs[k], pairs[k]);
    }
    for (int i = int(lane) + REGISTER_PAIRS * 32; i < half_size; i += 32) {
        const float2 pair = read_pair(row, elements_of(i, params));
        squares += dot(pair, pair);
    }
    const float factor = 1.0f / sqrt(simd_sum(squares) / float(params.D) + params.eps);
    for (int k = 0; k < REGISTER_PAIRS; k++) {
        const int i = int(lane) + k * 32;
        if (i < half_size) {
            rotate_pair<T, W>(pairs[k], factor, i, weight, cosines + angles, sines + angles,
                              out_row, params);
        }
    }
    for (int i = int(lane) + REGISTER_PAIRS * 32; i < half_size; i += 32) {
        const float2 pair = read_pair(row, elements_of(i, params));
        rotate_pair<T, W>(pair, factor, i, weight, cosines + angles, sines + angles, out_row,
                          params);
    }
}

#define INSTANTIATE(name, T, W)                                                                 \
    template [[host_name("qk_norm_rope_head_" #name)]] [[kernel]] void qk_norm_rope_head<T, W>( \
        device const T*, device const W*, device const float*, device const float*, device T*,  \
        constant const QkNormRopeParams&, uint, uint, uint, uint);

INSTANTIATE(float32, float, float)
INSTANTIATE(float16, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat)
INSTANTIATE(float16_weight_float32, half, float)
INSTANTIATE(bfloat16_weight_float32, bfloat, float)
