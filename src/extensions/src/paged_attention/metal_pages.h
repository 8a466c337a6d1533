// Which tokens a sequence has in a call of paged_attention, and where its keys are: what the fast
// kernels share. For Metal only. paged_attention.h has the contract, for indices out of range too.
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_sources.h"
#include "src/paged_attention/paged_attention_params.h"

namespace tiny_llm_ext {

using namespace metal;

/// The tokens with queries of a sequence: first … first + L − 1.
struct Tokens {
    int first, L;
};

/// Those of sequence b, or of none (b = B): then what is left behind the last. To be called by all
/// lanes of a simdgroup for one b.
inline Tokens tokens_of(constant const PagedAttentionParams& params, device const int* cu_seqlens_q,
                        int b, uint lane) {
    if (params.L > 0) {
        return {b * params.L, params.L};
    }
    int first = 0;  // cu_seqlens_q[b], if they ascend; at least where an earlier sequence begins
    for (int i = int(lane); i <= b; i += 32) {
        first = max(first, cu_seqlens_q[i]);
    }
    first = min(simd_max(first), params.T);
    const int end = b < params.B ? clamp(cu_seqlens_q[b + 1], first, params.T) : params.T;
    return {first, end - first};
}

/// A sequence's rows in pages. Its `pages` must be there (see misses_pages).
template <typename T>
struct PageSource {
    constant const PagedAttentionParams* params;
    int b, key_head;
    Tokens tokens;
    uint lane;
    device const T* queries;      // of all sequences
    device const T* key_pages;    // P×H×page_size×D, from `key_head` on
    device const T* value_pages;  // P×H×page_size×D, the same
    long page_stride;             // H·page_size·D
    device const int* pages;      // of this sequence
    device T* results;            // T×H_q×D
    int page_begin;               // the first key of the page that was looked up last
    long page_start;              // and where its row is
    device const T *key, *value;

    device const T* query(int head, int l) const {
        return queries + head * params->query_strides[1] +
               (params->L > 0 ? b * params->query_strides[0] + l * params->query_strides[2]
                              : (tokens.first + l) * params->query_strides[2]);
    }

    /// The table is looked at once for each page, by one lane. s must not be less than before.
    void seek(int s) {
        if (s - page_begin >= params->page_size) {
            const int number = s / params->page_size;
            const int page = simd_broadcast(lane == 0 ? pages[number] : 0, ushort(0));
            page_begin = number * params->page_size;
            page_start = page * page_stride;
        }
        const long at = page_start + (s - page_begin) * params->D;
        key = key_pages + at;
        value = value_pages + at;
    }

    bool has_runs() const { return params->page_size % ATTENTION_SPLIT_RUN == 0; }

    void step() {
        key += params->D;
        value += params->D;
    }

    void move(int by) {
        key_pages += by;
        value_pages += by;
    }

    bool aligned() const { return params->aligned; }
    bool masks() const { return false; }
    float masked(int, int, int, float score) const { return score; }
    device T* out(int head, int l) const {
        return results + (long(tokens.first + l) * params->H_q + head) * params->D;
    }

    /// Only sequences with few queries have partial results, so that the memory of a long chunk in
    /// the same call is not wanted: min(T, B·FEW) tokens of them. Sequence b's begin at
    /// min(first, b·FEW), which is never before the end of an earlier one's, as this has at most
    /// FEW of them and ends where the next one's tokens begin.
    long partial_row(int head, int l) const {
        const int begin = min(tokens.first, b * ATTENTION_FEW_QUERIES);
        return long(begin + l) * params->H_q + head;
    }
};

/// The work of a sequence's key head.
inline AttentionGroup paged_group(constant const PagedAttentionParams& params,
                                  device const int* context_lens, int b, int key_head, int L) {
    const int G = params.H_q / params.H;
    const long room = long(params.max_pages) * params.page_size;
    const int keys = int(clamp(long(context_lens[b]), 0L, room));
    return {L, keys, G, params.D, key_head * G, params.causal, params.scale};
}

template <typename T>
PageSource<T> page_source(constant const PagedAttentionParams& params, int b, int key_head,
                          Tokens tokens, uint lane, device const T* query,
                          device const T* key_pages, device const T* value_pages,
                          device const int* block_table, device T* out) {
    device const int* pages = block_table + long(b) * params.max_pages;
    const int nowhere = -params.page_size;  // every key is behind the page that begins there
    const long head = long(params.page_size) * params.D;
    key_pages += key_head * head;
    value_pages += key_head * head;
    return {&params,         b,     key_head, tokens,  lane, query,     key_pages,  value_pages,
            params.H * head, pages, out,      nowhere, 0,    key_pages, value_pages};
}

/// Whether one of the pages of keys first … end − 1 is not there. For all lanes of a simdgroup.
inline bool misses_pages(constant const PagedAttentionParams& params, device const int* pages,
                         int first, int end, uint lane) {
    bool misses = false;
    const int size = params.page_size, last = (end - 1) / size;
    for (int i = first / size + int(lane); first < end && i <= last; i += 32) {
        misses = misses || pages[i] < 0 || pages[i] >= params.P;
    }
    return simd_any(misses);
}

}  // namespace tiny_llm_ext
