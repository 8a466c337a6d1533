// flash_attention on the GPU for few query rows: decoding. Algorithm: metal_attention_decode.h.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_decode.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T, int ROWS, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void flash_attention_decode(
    device const T* query [[buffer(0)]],           // B×H_q×L×D
    device const T* key [[buffer(1)]],             // B×H×S×D
    device const T* value [[buffer(2)]],           // B×H×S×D
    device const uchar* mask [[buffer(3)]],        // B×H_q×L×S, optional
    device const int* context_lens [[buffer(4)]],  // B, optional
    device const float* sinks [[buffer(5)]],       // H_q, optional
    device T* out [[buffer(6)]],                   // B×L×H_q×D, written if splits = 1
    device float* partial [[buffer(7)]],           // B×H_q×L×splits×D, written if splits > 1
    device float* statistics [[buffer(8)]],        // B×H_q×L×splits×2: maximum score, sum
    constant const FlashAttentionParams& params [[buffer(9)]],
    uint3 at [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 memory[split_memory<ROWS, DIM>()];
    const int b = int(at.z) / params.H, key_head = int(at.z) % params.H;
    const AttentionGroup group = dense_group(params, context_lens, b, key_head);
    DenseSource<T> source = dense_source(params, b, key_head, query, key, value, mask, sinks, out);
    const Split split = {int(at.x), params.splits, partial, statistics};
    attend_to_split<ROWS, DIM>(group, source, split, int(at.y) * ROWS, memory, simdgroup, lane);
}

// Merges the splits of a row; one simdgroup per row.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void flash_attention_merge(
    device const float* partial [[buffer(0)]], device const float* statistics [[buffer(1)]],
    device T* out [[buffer(2)]], constant const FlashAttentionParams& params [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const int l = int(row) % params.L, head = int(row) / params.L % params.H_q;
    const int b = int(row) / params.L / params.H_q;
    const long first = long(row) * params.splits;
    merge_splits(partial + first * params.D, statistics + first * 2, params.splits, params.D,
                 out + out_offset(params, b, head, l), lane);
}

#define INSTANTIATE(name, T, ROWS, DIM)                                                        \
    template                                                                                   \
        [[host_name("flash_attention_decode_rows" #ROWS "_d" #DIM "_" #name)]] [[kernel]] void \
        flash_attention_decode<T, ROWS, DIM>(                                                  \
            device const T*, device const T*, device const T*, device const uchar*,            \
            device const int*, device const float*, device T*, device float*, device float*,   \
            constant const FlashAttentionParams&, uint3, uint, uint);

#define INSTANTIATE_ROWS(name, T, DIM) \
    INSTANTIATE(name, T, 2, DIM)       \
    INSTANTIATE(name, T, 4, DIM)       \
    INSTANTIATE(name, T, 8, DIM)

#define INSTANTIATE_SIZES(name, T)                                                \
    INSTANTIATE_ROWS(name, T, 128)                                                \
    INSTANTIATE_ROWS(name, T, 256)                                                \
    INSTANTIATE(name, T, 2, 512)                                                  \
    INSTANTIATE(name, T, 4, 512)                                                  \
    template [[host_name("flash_attention_decode_merge_" #name)]] [[kernel]] void \
    flash_attention_merge<T>(device const float*, device const float*, device T*, \
                             constant const FlashAttentionParams&, uint, uint);

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
