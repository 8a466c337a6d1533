// flash_attention on the GPU with simdgroup matrices: the kernel for prompts. Algorithm:
// metal_attention_tile.h.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_tile.h"

using namespace metal;
using namespace tiny_llm_ext;

// DIM: head size, rounded up to 128, 256 or 512.
template <typename T, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void flash_attention_tile(
    device const T* query [[buffer(0)]],           // B×H_q×L×D
    device const T* key [[buffer(1)]],             // B×H×S×D
    device const T* value [[buffer(2)]],           // B×H×S×D
    device const uchar* mask [[buffer(3)]],        // B×H_q×L×S, optional
    device const int* context_lens [[buffer(4)]],  // B, optional
    device const float* sinks [[buffer(5)]],       // H_q, optional
    device T* out [[buffer(6)]],                   // B×L×H_q×D
    constant const FlashAttentionParams& params [[buffer(7)]],
    uint2 at [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup vec<T, 4> key_memory[TileSizes<T, DIM>::FOURS];
    threadgroup vec<T, 4> value_memory[TileSizes<T, DIM>::VALUE_FOURS];
    const int b = int(at.y) / params.H, key_head = int(at.y) % params.H;
    const AttentionGroup group = dense_group(params, context_lens, b, key_head);
    DenseSource<T> source = dense_source(params, b, key_head, query, key, value, mask, sinks, out);
    // Starts with the last rows: with a causal mask they see the most keys and take the longest.
    const int block = int(groups.x - 1 - at.x) * int(simdgroups) * ATTENTION_MATRIX_ROWS;
    attend_to_tiles<T, DIM>(group, source, block, (threadgroup T*)key_memory,
                            (threadgroup T*)value_memory, nullptr, simdgroup, simdgroups, lane,
                            thread_index);
}

#define INSTANTIATE(name, T, DIM)                                                               \
    template [[host_name("flash_attention_tile_d" #DIM "_" #name)]] [[kernel]] void             \
    flash_attention_tile<T, DIM>(device const T*, device const T*, device const T*,             \
                                 device const uchar*, device const int*, device const float*,   \
                                 device T*, constant const FlashAttentionParams&, uint2, uint2, \
                                 uint, uint, uint, uint);

#define INSTANTIATE_SIZES(name, T) \
    INSTANTIATE(name, T, 128)      \
    INSTANTIATE(name, T, 256)      \
    INSTANTIATE(name, T, 512)

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
