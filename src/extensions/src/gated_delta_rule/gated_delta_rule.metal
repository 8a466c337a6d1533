// gated_delta_rule on the GPU, in two kernels: norms and gates of all tokens, then the recurrence,
// token by token. Contract: gated_delta_rule.h.
#include <metal_stdlib>

#include "common/metal_sigmoid.h"
#include "common/metal_state_slots.h"
#include "src/gated_delta_rule/gated_delta_rule_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// 1 / √(Σ x² + 1e-6), computed by a simdgroup.
inline float norm_factor(device const float* x, int D, int lane) {
    float squares = 0;
    for (int d = lane; d < D; d += 32) {
        squares += x[d] * x[d];
    }
    return 1.0f / sqrt(simd_sum(squares) + 1e-6f);
}

// One simdgroup per token and key head. For each value head of that key head, computes the factors
// that normalize query and key, β and γ.
template <typename T>
[[kernel]] void gated_delta_rule_factors(
    device const float* qkv [[buffer(0)]], device const T* a [[buffer(1)]],
    device const T* b [[buffer(2)]], device const float* A_log [[buffer(3)]],
    device const float* dt_bias [[buffer(4)]], device float4* factors [[buffer(5)]],
    constant const GatedDeltaRuleParams& params [[buffer(6)]],
    uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    const long head = long(group) * simdgroups + simdgroup, t = head / params.H_k;
    if (t >= params.T) {
        return;  // all lanes of the simdgroup return
    }
    const int key_head = int(head % params.H_k), value_heads = params.H_v / params.H_k;
    device const float* q = qkv + t * params.qkv_stride + key_head * params.D_k;
    const float q_factor = norm_factor(q, params.D_k, int(lane)) / sqrt(float(params.D_k));
    const float k_factor = norm_factor(q + params.H_k * params.D_k, params.D_k, int(lane));
    for (int i = int(lane); i < value_heads; i += 32) {
        const int h = key_head * value_heads + i;
        const float x = float(a[t * params.a_stride + h]) + dt_bias[h];
        const float softplus = max(x, 0.0f) + log(1.0f + exp(-abs(x)));
        const float beta = sigmoid(float(b[t * params.b_stride + h]));
        const float decay = exp(-exp(A_log[h]) * softplus);
        factors[t * params.H_v + h] = float4(q_factor, k_factor, beta, decay);
    }
}

// Sum over the lanes that share a column.
inline float sum_of_rows(float x) {
    x += simd_shuffle_xor(x, ushort(8));
    return x + simd_shuffle_xor(x, ushort(16));
}

// One simdgroup per 8 columns of a head's state. A lane holds every fourth row of one column in
// registers, at most ROWS rows.
template <int ROWS>
[[kernel]] void gated_delta_rule_recurrence(
    device const float* qkv [[buffer(0)]], device const float4* factors [[buffer(1)]],
    device const int* cu_seqlens [[buffer(2)]], device const int* read_slots [[buffer(3)]],
    device const int* write_slots [[buffer(4)]], device float* states [[buffer(5)]],
    device float* o [[buffer(6)]], constant const GatedDeltaRuleParams& params [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    const int column =
        int(group.x * simdgroups + simdgroup) * DELTA_SIMD_COLUMNS + int(lane) % DELTA_SIMD_COLUMNS;
    const int first_row = int(lane) / DELTA_SIMD_COLUMNS, h = int(group.y);
    const bool is_inside = column < params.D_v;
    const StatefulSequence sequence =
        sequence_of(int(group.z), params.T, params.S, cu_seqlens, read_slots);
    const long keys = params.H_k * params.D_k;
    const long k_at = keys + h / (params.H_v / params.H_k) * params.D_k;
    const long v_at = 2 * keys + long(h) * params.D_v + column;

    float state[ROWS];
    device float* stored =
        states + (long(sequence.read_slot) * params.H_v + h) * params.D_k * params.D_v + column;
    for (int j = 0; j < ROWS; j++) {
        const int row = first_row + j * DELTA_ROW_GROUPS;
        const bool is_stored = sequence.read_slot >= 0 && is_inside && row < params.D_k;
        state[j] = is_stored ? stored[long(row) * params.D_v] : 0.0f;
    }
    for (int t = sequence.first; t < sequence.end; t++) {
        device const float* token = qkv + t * params.qkv_stride;
        device const float* k = token + k_at;
        device const float* q = k - keys;
        const float4 f = factors[long(t) * params.H_v + h];
        float predicted = 0;
        for (int j = 0; j < ROWS; j++) {
            const int row = first_row + j * DELTA_ROW_GROUPS;
            predicted += row < params.D_k ? state[j] * k[row] : 0.0f;
        }
        const float value = is_inside ? token[v_at] : 0.0f;
        const float delta = f.z * f.y * (value - f.w * f.y * sum_of_rows(predicted));
        float out = 0;
        for (int j = 0; j < ROWS; j++) {
            const int row = first_row + j * DELTA_ROW_GROUPS;
            if (row < params.D_k) {
                state[j] = f.w * state[j] + k[row] * delta;
                out += state[j] * q[row];
            }
        }
        out = f.x * sum_of_rows(out);
        if (first_row == 0 && is_inside) {
            o[(long(t) * params.H_v + h) * params.D_v + column] = out;
        }
        const int slot = write_slot(t, params.S, write_slots);
        device float* written =
            states + (long(slot) * params.H_v + h) * params.D_k * params.D_v + column;
        for (int j = 0; j < ROWS; j++) {
            const int row = first_row + j * DELTA_ROW_GROUPS;
            if (slot >= 0 && is_inside && row < params.D_k) {
                written[long(row) * params.D_v] = state[j];
            }
        }
    }
}

#define INSTANTIATE(name, T)                                                              \
    template [[host_name("gated_delta_rule_factors_" #name)]] [[kernel]] void             \
    gated_delta_rule_factors<T>(device const float*, device const T*, device const T*,    \
                                device const float*, device const float*, device float4*, \
                                constant const GatedDeltaRuleParams&, uint, uint, uint, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)

#define INSTANTIATE_RECURRENCE(rows)                                                           \
    template [[host_name("gated_delta_rule_recurrence_" #rows)]] [[kernel]] void               \
    gated_delta_rule_recurrence<rows / DELTA_ROW_GROUPS>(                                      \
        device const float*, device const float4*, device const int*, device const int*,       \
        device const int*, device float*, device float*, constant const GatedDeltaRuleParams&, \
        uint3, uint, uint, uint);

INSTANTIATE_RECURRENCE(128)
INSTANTIATE_RECURRENCE(256)
