// Readable paged_attention and paged_attention_varlen on the GPU: one simdgroup per query row, one
// key at a time. Contract: paged_attention.h.
//
// Lane i holds elements i, i + 32, … of the query row and of its output. Rows share no loads, so
// every key is read once per row: correct for every shape, but slow if many rows share keys.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_scores.h"
#include "src/paged_attention/paged_attention_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int SLICES = 16;  // slices of 32 elements: D up to 512

// A token's sequence, and its query index within it.
struct Query {
    int sequence;  // −1: token in no sequence
    int l, L;
};

inline Query query_of(constant const PagedAttentionParams& params, device const int* cu_seqlens_q,
                      int token) {
    if (params.L > 0) {
        return {token / params.L, token % params.L, params.L};
    }
    int end = 0;  // end of the previous sequence's tokens
    for (int b = 0; b < params.B; b++) {
        const int first = clamp(cu_seqlens_q[b], end, params.T);
        end = clamp(cu_seqlens_q[b + 1], first, params.T);
        if (token >= first && token < end) {
            return {b, token - first, end - first};
        }
    }
    return {-1, 0, 0};
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void paged_attention_readable(
    device const T* query [[buffer(0)]],
    device const T* key_pages [[buffer(1)]],       // P×H×page_size×D
    device const T* value_pages [[buffer(2)]],     // P×H×page_size×D
    device const int* block_table [[buffer(3)]],   // B×max_pages
    device const int* context_lens [[buffer(4)]],  // B
    device const int* cu_seqlens_q [[buffer(5)]],  // B+1, in the varlen form
    device const float* sinks [[buffer(6)]],       // H_q, optional
    device T* out [[buffer(7)]],                   // T×H_q×D
    constant const PagedAttentionParams& params [[buffer(8)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const int token = int(group.x), head = int(group.y), D = params.D;
    const int key_head = head / (params.H_q / params.H);
    const Query position = query_of(params, cu_seqlens_q, token);
    float q[SLICES], o[SLICES] = {};
    float largest = params.has_sinks ? sinks[head] : -INFINITY;
    float sum = params.has_sinks ? 1 : 0;
    bool pages_missing = false;
    if (position.sequence >= 0) {
        const int capacity = params.max_pages * params.page_size;
        const int keys = clamp(context_lens[position.sequence], 0, capacity);
        pages_missing = context_lens[position.sequence] > capacity;
        device const int* pages = block_table + long(position.sequence) * params.max_pages;
        for (int i = int(lane); i * params.page_size < keys; i += 32) {
            pages_missing = pages_missing || pages[i] < 0 || pages[i] >= params.P;
        }
        pages_missing = simd_any(pages_missing);

        device const T* row = query + head * params.query_strides[1];
        row += params.L > 0 ? position.sequence * params.query_strides[0] +
                                  position.l * params.query_strides[2]
                            : token * params.query_strides[2];
        for (int i = 0; i < SLICES; i++) {
            const int d = i * 32 + int(lane);
            q[i] = d < D ? float(row[d]) : 0.0f;
        }
        // [task 3.2.2 metal]
        const int visible = visible_keys(params.causal, keys, position.L, position.l);
        for (int s = 0; s < visible && !pages_missing; s++) {
            const long page = long(pages[s / params.page_size]) * params.H + key_head;
            const long start = (page * params.page_size + s % params.page_size) * D;
            float score = 0;
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                score += d < D ? q[i] * float(key_pages[start + d]) : 0.0f;
            }
            score = simd_sum(score) * params.scale;
            const float larger = max(largest, score);
            const float factor = rescale(largest, larger), weight = weight_of(score, larger);
            largest = larger;
            sum = sum * factor + weight;
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                o[i] = o[i] * factor + (d < D ? weight * float(value_pages[start + d]) : 0.0f);
            }
        }
        // [/task 3.2.2 metal]
    }
    device T* out_row = out + (long(token) * params.H_q + head) * D;
    for (int i = 0; i < SLICES; i++) {
        const int d = i * 32 + int(lane);
        if (d < D) {
            out_row[d] = T(pages_missing ? NAN : sum == 0 ? 0.0f : o[i] / sum);
        }
    }
}

#define INSTANTIATE(name, T)                                                             \
    template [[host_name("paged_attention_readable_" #name)]] [[kernel]] void            \
    paged_attention_readable<T>(device const T*, device const T*, device const T*,       \
                                device const int*, device const int*, device const int*, \
                                device const float*, device T*,                          \
                                constant const PagedAttentionParams&, uint2, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
