// paged_attention on the GPU for sequences with few queries: decoding. Algorithm:
// metal_attention_decode.h; key lookup: metal_pages.h.
//
// In the varlen form, the batch may also contain sequences with many queries, which
// paged_attention_tile computes. Which sequences these are, and how long their contexts are, is
// unknown on the host. The grid therefore covers B sequences of the maximum size, and surplus
// threadgroups exit immediately. One extra grid index zeroes the output of tokens in no sequence.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_decode.h"
#include "src/paged_attention/metal_pages.h"

using namespace metal;
using namespace tiny_llm_ext;

// Zeroes the rows of tokens before the first and after the last sequence, for the query heads of
// one key head. `shares` threadgroups divide the tokens among them; `share` is this threadgroup's
// index.
template <typename T>
void clear_tokens_of_no_sequence(constant const PagedAttentionParams& params,
                                 device const int* cu_seqlens_q, int key_head, device T* out,
                                 int share, int shares, uint simdgroup, uint lane) {
    const int before = clamp(cu_seqlens_q[0], 0, params.T);
    const int behind = tokens_of(params, cu_seqlens_q, params.B, lane).first;
    const int row = params.H_q / params.H * params.D;
    for (int token = share; token < params.T; token += shares) {
        if (token >= before && token < behind) {
            continue;
        }
        device T* to = out + (long(token) * params.H + key_head) * row;
        for (int i = int(simdgroup) * 32 + int(lane); i < row;
             i += ATTENTION_SPLIT_SIMDGROUPS * 32) {
            to[i] = T(0.0f);
        }
    }
}

// Stores NaN for a row with an invalid page in this split; the merge of the splits propagates it.
template <typename T, typename Stored>
void store_nan_row(thread const AttentionGroup& group, thread const PageSource<T, Stored>& source,
                   thread const Split& split, int row, uint lane) {
    const int head = group.head(row), l = group.token(row);
    if (split.count > 1 && lane == 0) {
        split.store_statistics(source.partial_row(head, l), INFINITY, NAN);
    }
    for (int d = int(lane); split.count == 1 && d < group.D; d += 32) {
        source.out(head, l)[d] = T(NAN);
    }
}

template <typename T, typename Stored, int ROWS, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void paged_attention_decode(
    device const T* query [[buffer(0)]],
    device const Stored* key_pages [[buffer(1)]],    // P×H×page_size rows
    device const Stored* value_pages [[buffer(2)]],  // P×H×page_size rows
    device const int* block_table [[buffer(3)]],     // B×max_pages
    device const int* context_lens [[buffer(4)]],    // B
    device const int* cu_seqlens_q [[buffer(5)]],    // B+1, in the varlen form
    device const float* sinks [[buffer(6)]],         // H_q, optional
    device T* out [[buffer(7)]],                     // T×H_q×D; written if splits is 1
    device float* partial [[buffer(8)]],     // rows×splits×D, if splits > 1; see partial_row
    device float* statistics [[buffer(9)]],  // rows×splits×2
    constant const PagedAttentionParams& params [[buffer(10)]],
    uint3 at [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 memory[split_memory<ROWS, DIM>()];
    const int b = int(at.z) / params.H, key_head = int(at.z) % params.H;
    if (b == params.B) {
        clear_tokens_of_no_sequence(params, cu_seqlens_q, key_head, out,
                                    int(at.y * groups.x + at.x), int(groups.x * groups.y),
                                    simdgroup, lane);
        return;
    }
    const Tokens tokens = tokens_of(params, cu_seqlens_q, b, lane);
    const AttentionGroup group = paged_group(params, context_lens, b, key_head, tokens.L);
    const int first_row = int(at.y) * ROWS;
    if (tokens.L > ATTENTION_FEW_QUERIES || first_row >= group.rows()) {
        return;
    }
    PageSource<T, Stored> source = page_source(params, b, key_head, tokens, lane, query, key_pages,
                                               value_pages, block_table, sinks, out);
    const Split split = {int(at.x), params.splits, partial, statistics};
    const int first = split.index * ATTENTION_SPLIT;
    const int split_end = min(first + ATTENTION_SPLIT, group.S);
    const int begin = max(first, group.hidden(0));
    if (has_missing_pages(params, context_lens[b], source.pages, begin, split_end, lane)) {
        const int end = min(first_row + ROWS, group.rows());
        for (int row = first_row + int(simdgroup); row < end; row += ATTENTION_SPLIT_SIMDGROUPS) {
            store_nan_row(group, source, split, row, lane);
        }
        return;
    }
    attend_to_split<ROWS, DIM>(group, source, split, first_row, memory, simdgroup, lane);
}

// Merges the splits of each row. One simdgroup per row; grid: token of the sequence, query head,
// sequence.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void paged_attention_merge(
    device const float* partial [[buffer(0)]], device const float* statistics [[buffer(1)]],
    device const int* cu_seqlens_q [[buffer(2)]], device T* out [[buffer(3)]],
    constant const PagedAttentionParams& params [[buffer(4)]],
    uint3 at [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    const int l = int(at.x), head = int(at.y), b = int(at.z);
    const Tokens tokens = tokens_of(params, cu_seqlens_q, b, lane);
    if (tokens.L > ATTENTION_FEW_QUERIES || l >= tokens.L) {
        return;
    }
    PageSource<T, T> source = page_source<T, T>(params, b, 0, tokens, lane, nullptr, nullptr,
                                                nullptr, nullptr, nullptr, out);
    const long first = source.partial_row(head, l) * params.splits;
    merge_splits(partial + first * params.D, statistics + first * 2, params.splits, params.D,
                 source.out(head, l), lane);
}

#define INSTANTIATE(name, T, Stored, ROWS, DIM)                                                  \
    template                                                                                     \
        [[host_name("paged_attention_decode_rows" #ROWS "_d" #DIM "_" #name)]] [[kernel]] void   \
        paged_attention_decode<T, Stored, ROWS, DIM>(                                            \
            device const T*, device const Stored*, device const Stored*, device const int*,      \
            device const int*, device const int*, device const float*, device T*, device float*, \
            device float*, constant const PagedAttentionParams&, uint3, uint3, uint, uint);

#define INSTANTIATE_ROWS(name, T, Stored, DIM) \
    INSTANTIATE(name, T, Stored, 2, DIM)       \
    INSTANTIATE(name, T, Stored, 4, DIM)       \
    INSTANTIATE(name, T, Stored, 8, DIM)

#define INSTANTIATE_SIZES(name, T)                                                        \
    INSTANTIATE_ROWS(name, T, T, 128)                                                     \
    INSTANTIATE_ROWS(name, T, T, 256)                                                     \
    INSTANTIATE(name, T, T, 2, 512)                                                       \
    INSTANTIATE(name, T, T, 4, 512)                                                       \
    INSTANTIATE_ROWS(name##_int8, T, char, 128)                                           \
    INSTANTIATE_ROWS(name##_int8, T, char, 256)                                           \
    INSTANTIATE(name##_int8, T, char, 2, 512)                                             \
    INSTANTIATE(name##_int8, T, char, 4, 512)                                             \
    template [[host_name("paged_attention_decode_merge_" #name)]] [[kernel]] void         \
    paged_attention_merge<T>(device const float*, device const float*, device const int*, \
                             device T*, constant const PagedAttentionParams&, uint3, uint);

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
