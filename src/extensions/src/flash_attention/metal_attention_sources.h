// Sources of queries, keys and values for the attention kernels. Metal only.
//
// metal_attention_decode.h and metal_attention_tile.h contain the computation: they take the
// problem size (an AttentionGroup) and request rows from a source. A contiguous cache (DenseSource)
// and a paged one (paged_attention/metal_pages.h) therefore give the same bits. Interface of a
// source:
//
//     query(head, l)                  query row of a head and token
//     seek(s)                         points `key` and `value` to the rows of key s; call from all
//                                     lanes of a simdgroup with the same, non-decreasing s
//     has_runs()                      whether a run of keys, from a multiple of 16 on, is
//                                     contiguous
//     step()                          advances to the next key of the run
//     move(by)                        makes later `key` and `value` pointers skip `by` elements of
//                                     their rows
//     SCALED                          whether elements are integers with a scale per row
//     key_scale(), value_scale()      scales of the rows of `key` and `value`; 1 unless SCALED
//     aligned()                       whether offsets and sizes of key and value rows are multiples
//                                     of four
//     has_mask()                      whether there is a mask
//     masked(head, l, s, x)           the score x of key s plus its mask term
//     sinks                           sinks of the query heads, or null
//     out(head, l)                    output row
//     partial_row(head, l)            index of the row in the decode kernel's partial results
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_scores.h"

namespace tiny_llm_ext {

/// One key head of a sequence and the G query heads that share it. Row r is head r % G of the group
/// and token r / G.
struct AttentionGroup {
    int L, S;        // number of queries and keys of the sequence
    int G, D;        // number of query heads in the group; head size
    int first_head;  // first query head
    int causal;
    float scale;
    int window;  // number of newest keys visible to a row; INT_MAX: all

    int rows() const { return L * G; }
    // If L is 1, as in decoding, row r is head r of the group, so no division is needed.
    int head(int row) const { return first_head + (L == 1 ? row : row % G); }
    int token(int row) const { return L == 1 ? 0 : row / G; }

    /// Number of leading keys visible to a row before any mask.
    int visible(int row) const { return visible_keys(causal, S, L, token(row)); }

    /// Number of the visible(row) leading keys that are before the row's window.
    int hidden(int row) const {
        return window == INT_MAX ? 0 : metal::max(visible(row) - window, 0);
    }
};

/// Source of rows in strided arrays.
template <typename T>
struct DenseSource {
    enum { SCALED = 0 };
    constant const FlashAttentionParams* params;
    int b;
    device const T* queries;    // B×H_q×L×D
    device const T* keys;       // S×D, of this sequence and head
    device const T* values;     // S×D, of this sequence and head
    device const uchar* mask;   // B×H_q×L×S, optional
    device const float* sinks;  // H_q, or null
    device T* results;          // B×L×H_q×D
    device const T *key, *value;

    device const T* query(int head, int l) const {
        return queries + row_offset(params->query_strides, b, head, l);
    }
    void seek(int s) {
        key = keys + s * params->key_strides[2];
        value = values + s * params->value_strides[2];
    }
    bool has_runs() const { return true; }
    void step() {
        key += params->key_strides[2];
        value += params->value_strides[2];
    }
    void move(int by) {
        keys += by;
        values += by;
    }
    float key_scale() const { return 1; }
    float value_scale() const { return 1; }
    bool aligned() const { return params->aligned; }
    bool has_mask() const { return params->mask_kind != ATTENTION_MASK_NONE; }
    float masked(int head, int l, int s, float score) const {
        return tiny_llm_ext::masked(*params, mask, mask_row(*params, b, head, l), s, score);
    }
    device T* out(int head, int l) const { return results + out_offset(*params, b, head, l); }
    long partial_row(int head, int l) const {
        return (long(b) * params->H_q + head) * params->L + l;
    }
};

template <typename T>
DenseSource<T> dense_source(constant const FlashAttentionParams& params, int b, int key_head,
                            device const T* query, device const T* key, device const T* value,
                            device const uchar* mask, device const float* sinks, device T* out) {
    key += row_offset(params.key_strides, b, key_head, 0);
    value += row_offset(params.value_strides, b, key_head, 0);
    sinks = params.has_sinks ? sinks : nullptr;
    return {&params, b, query, key, value, mask, sinks, out, key, value};
}

/// The AttentionGroup of a sequence's key head in flash_attention.
inline AttentionGroup dense_group(constant const FlashAttentionParams& params,
                                  device const int* context_lens, int b, int key_head) {
    const int G = params.H_q / params.H, keys = keys_of(params, context_lens, b);
    return {params.L, keys, G, params.D, key_head * G, params.causal, params.scale, INT_MAX};
}

}  // namespace tiny_llm_ext
