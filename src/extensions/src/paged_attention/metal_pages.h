// Token ranges and page lookup of sequences, for the fast kernels of paged_attention. Metal only.
// Contract, including indices out of range: paged_attention.h.
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_sources.h"
#include "src/paged_attention/paged_attention_params.h"

namespace tiny_llm_ext {

using namespace metal;

/// Indices of a sequence's query tokens in the batch: first … first + L − 1.
struct Tokens {
    int first, L;
};

/// Tokens of sequence b; for b = B, those after the last sequence. Call from all lanes of a
/// simdgroup with the same b.
inline Tokens tokens_of(constant const PagedAttentionParams& params, device const int* cu_seqlens_q,
                        int b, uint lane) {
    if (params.L > 0) {
        return {b * params.L, params.L};
    }
    int first = 0;  // max(cu_seqlens_q[0 … b]); equals cu_seqlens_q[b] if they ascend
    for (int i = int(lane); i <= b; i += 32) {
        first = max(first, cu_seqlens_q[i]);
    }
    first = min(simd_max(first), params.T);
    const int end = b < params.B ? clamp(cu_seqlens_q[b + 1], first, params.T) : params.T;
    return {first, end - first};
}

/// Queries of a sequence, and its keys and values in pages. The pages must be valid from the first
/// visible key on (see has_missing_pages). Stored: T, or char for 8-bit rows (common/int8_rows.h).
template <typename T, typename Stored>
struct PageSource {
    enum { SCALED = sizeof(Stored) == 1 };
    constant const PagedAttentionParams* params;
    int b, key_head;
    Tokens tokens;
    uint lane;
    device const T* queries;           // of all sequences
    device const Stored* key_pages;    // P×H×page_size rows, from head `key_head` on
    device const Stored* value_pages;  // P×H×page_size rows, from head `key_head` on
    long page_stride;                  // elements per page: H·page_size rows
    device const int* pages;           // this sequence's row of the block table
    device const float* sinks;         // H_q, or null
    device T* results;                 // T×H_q×D
    int page_begin;                    // first key of the current page
    long page_start;                   // offset of that key's row
    device const Stored *key, *value;
    int moved;  // offset of `key` and `value` within their rows

    device const T* query(int head, int l) const {
        return queries + head * params->query_strides[1] +
               (params->L > 0 ? b * params->query_strides[0] + l * params->query_strides[2]
                              : (tokens.first + l) * params->query_strides[2]);
    }

    /// Points `key` and `value` to key s. Reads the block table once per page, in one lane. s must
    /// be non-decreasing.
    void seek(int s) {
        if (s - page_begin >= params->page_size) {
            const int number = s / params->page_size;
            const int page = simd_broadcast(lane == 0 ? pages[number] : 0, ushort(0));
            page_begin = number * params->page_size;
            page_start = page * page_stride;
        }
        const long at = page_start + long(s - page_begin) * params->row_width;
        key = key_pages + at;
        value = value_pages + at;
    }

    bool has_runs() const { return params->page_size % ATTENTION_SPLIT_RUN == 0; }

    void step() {
        key += params->row_width;
        value += params->row_width;
    }

    float key_scale() const { return scale_of(key); }
    float value_scale() const { return scale_of(value); }

    /// Scale of an 8-bit row, read byte by byte, because its address may be odd.
    float scale_of(device const Stored* at) const {
        device const uchar* bytes = (device const uchar*)(at - moved + params->D);
        return as_type<float>(uint(bytes[0]) | uint(bytes[1]) << 8 | uint(bytes[2]) << 16 |
                              uint(bytes[3]) << 24);
    }

    void move(int by) {
        key_pages += by;
        value_pages += by;
        moved += by;
    }

    bool aligned() const { return params->aligned; }
    bool has_mask() const { return false; }
    float masked(int, int, int, float score) const { return score; }
    device T* out(int head, int l) const {
        return results + (long(tokens.first + l) * params->H_q + head) * params->D;
    }

    /// Row of query l in the partial results. Only sequences of at most FEW = ATTENTION_FEW_QUERIES
    /// queries have partial results, so memory for min(T, B·FEW) tokens suffices. Sequence b's
    /// tokens begin at min(first, b·FEW), which is past those of earlier sequences: there are at
    /// most b·FEW of them, and all precede `first`.
    long partial_row(int head, int l) const {
        const int begin = min(tokens.first, b * ATTENTION_FEW_QUERIES);
        return long(begin + l) * params->H_q + head;
    }
};

/// Attention dimensions of one key head of a sequence.
inline AttentionGroup paged_group(constant const PagedAttentionParams& params,
                                  device const int* context_lens, int b, int key_head, int L) {
    const int G = params.H_q / params.H;
    const long capacity = long(params.max_pages) * params.page_size;
    const int keys = int(clamp(long(context_lens[b]), 0L, capacity));
    const int window = params.window > 0 ? params.window : INT_MAX;
    return {L, keys, G, params.D, key_head * G, params.causal, params.scale, window};
}

template <typename T, typename Stored>
PageSource<T, Stored> page_source(constant const PagedAttentionParams& params, int b, int key_head,
                                  Tokens tokens, uint lane, device const T* query,
                                  device const Stored* key_pages, device const Stored* value_pages,
                                  device const int* block_table, device const float* sinks,
                                  device T* out) {
    device const int* pages = block_table + long(b) * params.max_pages;
    const int no_page = -params.page_size;  // makes the first seek() read the block table
    const long head = long(params.page_size) * params.row_width;
    key_pages += key_head * head;
    value_pages += key_head * head;
    sinks = params.has_sinks ? sinks : nullptr;
    return {&params,   b,           key_head,        tokens,      lane,  query,
            key_pages, value_pages, params.H * head, pages,       sinks, out,
            no_page,   0,           key_pages,       value_pages, 0};
}

/// Whether a sequence's context exceeds its row of the block table, or any page of keys
/// first … end − 1 is invalid. Call from all lanes of a simdgroup.
inline bool has_missing_pages(constant const PagedAttentionParams& params, int context_len,
                              device const int* pages, int first, int end, uint lane) {
    bool missing = context_len > long(params.max_pages) * params.page_size;
    const int size = params.page_size, last = (end - 1) / size;
    for (int i = first / size + int(lane); first < end && i <= last; i += 32) {
        missing = missing || pages[i] < 0 || pages[i] >= params.P;
    }
    return simd_any(missing);
}

}  // namespace tiny_llm_ext
