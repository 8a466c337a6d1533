// paged_attention on the GPU with simdgroup matrices, for prompt chunks. Algorithm:
// metal_attention_tile.h; key lookup: metal_pages.h.
//
// A threadgroup computes a block: up to 64 rows of one sequence. In the varlen form, the host does
// not know the number of blocks per sequence, only the total of T·G rows, for G query heads per key
// head. Sequence b's blocks begin at grid index ⌊rows before it / 64⌋ + b. Sequences therefore
// never overlap, T·G / 64 + B indices suffice, and a threadgroup finds its sequence from its index.
// At most B indices are unused, plus those of sequences with few queries, which
// paged_attention_decode computes: their threadgroups exit immediately.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_tile.h"
#include "src/paged_attention/metal_pages.h"

using namespace metal;
using namespace tiny_llm_ext;

// Inclusive prefix maximum over lanes.
inline int largest_so_far(int x, uint lane) {
    for (ushort step = 1; step < 32; step *= 2) {
        const int lower = simd_shuffle_up(x, step);
        x = lane >= step ? max(x, lower) : x;
    }
    return x;
}

// Sequence of a grid index: the last one whose blocks begin at or before it. rows_per_token: G.
inline int sequence_at(constant const PagedAttentionParams& params, device const int* cu_seqlens_q,
                       int index, int rows_per_token, int rows_per_block, uint lane) {
    int found = 0, token = 0;
    for (int begin = 0; begin < params.B; begin += 32) {  // one lane per sequence
        const int b = begin + int(lane);
        const int mine = b < params.B ? clamp(cu_seqlens_q[b], token, params.T) : params.T;
        const int first = largest_so_far(mine, lane);  // max(cu_seqlens_q[0 … b])
        const bool begins = b < params.B && first * rows_per_token / rows_per_block + b <= index;
        const int count = simd_sum(begins ? 1 : 0);
        found = count > 0 ? begin + count - 1 : found;
        if (count < 32) {
            break;
        }
        token = simd_max(first);
    }
    return found;
}

template <typename T, typename Stored, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void paged_attention_tile(
    device const T* query [[buffer(0)]],
    device const Stored* key_pages [[buffer(1)]],    // P×H×page_size rows
    device const Stored* value_pages [[buffer(2)]],  // P×H×page_size rows
    device const int* block_table [[buffer(3)]],     // B×max_pages
    device const int* context_lens [[buffer(4)]],    // B
    device const int* cu_seqlens_q [[buffer(5)]],    // B+1, in the varlen form
    device const float* sinks [[buffer(6)]],         // H_q, optional
    device T* out [[buffer(7)]],                     // T×H_q×D
    constant const PagedAttentionParams& params [[buffer(8)]],
    uint3 at [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup vec<T, 4> key_memory[TileSizes<T, DIM>::FOURS];
    threadgroup vec<T, 4> value_memory[TileSizes<T, DIM>::VALUE_FOURS];
    threadgroup float scales[sizeof(Stored) == 1 ? 2 * TileSizes<T, DIM>::KEYS : 1];
    const int key_head = int(at.y), G = params.H_q / params.H;
    const int rows_per_block = int(simdgroups) * ATTENTION_MATRIX_ROWS;
    int index = int(groups.x - 1 - at.x);  // last rows first: if causal, they take the longest
    int b = int(at.z);
    if (params.L == 0) {
        b = sequence_at(params, cu_seqlens_q, index, G, rows_per_block, lane);
    }
    const Tokens tokens = tokens_of(params, cu_seqlens_q, b, lane);
    if (params.L == 0) {
        index -= tokens.first * G / rows_per_block + b;
    }
    const AttentionGroup group = paged_group(params, context_lens, b, key_head, tokens.L);
    const int block = index * rows_per_block;
    if (tokens.L <= ATTENTION_FEW_QUERIES || block >= group.rows()) {
        return;
    }
    PageSource<T, Stored> source = page_source(params, b, key_head, tokens, lane, query, key_pages,
                                               value_pages, block_table, sinks, out);
    if (has_missing_pages(params, context_lens[b], source.pages, group.hidden(0), group.S, lane)) {
        const int end = min(block + rows_per_block, group.rows());
        for (int row = block + int(simdgroup); row < end; row += int(simdgroups)) {
            for (int d = int(lane); d < group.D; d += 32) {
                source.out(group.head(row), group.token(row))[d] = T(NAN);
            }
        }
        return;
    }
    attend_to_tiles<T, DIM>(group, source, block, (threadgroup T*)key_memory,
                            (threadgroup T*)value_memory, scales, simdgroup, simdgroups, lane,
                            thread_index);
}

#define INSTANTIATE(name, T, Stored, DIM)                                               \
    template [[host_name("paged_attention_tile_d" #DIM "_" #name)]] [[kernel]] void     \
    paged_attention_tile<T, Stored, DIM>(                                               \
        device const T*, device const Stored*, device const Stored*, device const int*, \
        device const int*, device const int*, device const float*, device T*,           \
        constant const PagedAttentionParams&, uint3, uint3, uint, uint, uint, uint);

#define INSTANTIATE_SIZES(name, T)         \
    INSTANTIATE(name, T, T, 128)           \
    INSTANTIATE(name, T, T, 256)           \
    INSTANTIATE(name, T, T, 512)           \
    INSTANTIATE(name##_int8, T, char, 128) \
    INSTANTIATE(name##_int8, T, char, 256) \
    INSTANTIATE(name##_int8, T, char, 512)

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
