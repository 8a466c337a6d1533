// What a kernel attends to, and where it lies. For Metal only.
//
// metal_attention_decode.h and metal_attention_tile.h have the mathematics: they get how large
// the work is (an AttentionGroup) and ask a source for rows. So a cache in one buffer (DenseSource)
// and one in pages (paged_attention/metal_pages.h) give the same bits. A source has:
//
//     query(head, l)                  the query of a head and a token
//     seek(s)                         makes `key` and `value` the rows of key s; to be called by
//                                     all lanes of a simdgroup for one s, which does not decrease
//     has_runs()                      whether a run of keys, from a multiple of 16 on, lies in one
//                                     piece
//     step()                          to the next key of such a run
//     move(by)                        `key` and `value` will be so many elements further on
//     aligned()                       rows of key and value begin at, and have, multiples of four
//     masks(), masked(head, l, s, x)  whether there is a mask, and the score x with it
//     out(head, l)                    a row of the result
//     partial_row(head, l)            which row it is among the partial results of decoding
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_scores.h"

namespace tiny_llm_ext {

/// One key head of a sequence and the G query heads that read it. A row is a query head and a
/// token: row r is head r % G of the group and token r / G.
struct AttentionGroup {
    int L, S;        // queries and keys of the sequence
    int G, D;        // query heads, and elements of a head
    int first_head;  // of the query heads
    int causal;
    float scale;

    int rows() const { return L * G; }
    // Of one token, as in decoding, without a division.
    int head(int row) const { return first_head + (L == 1 ? row : row % G); }
    int token(int row) const { return L == 1 ? 0 : row / G; }

    /// How many keys, from the first, a row may see, as far as no mask hides them.
    int visible(int row) const { return visible_keys(causal, S, L, token(row)); }
};

/// Rows at strides.
template <typename T>
struct DenseSource {
    constant const FlashAttentionParams* params;
    int b;
    device const T* queries;   // B×H_q×L×D
    device const T* keys;      // S×D, of this sequence and head
    device const T* values;    // S×D, the same
    device const uchar* mask;  // B×H_q×L×S, if there is one
    device T* results;         // B×L×H_q×D
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
    bool aligned() const { return params->aligned; }
    bool masks() const { return params->mask_kind != ATTENTION_MASK_NONE; }
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
                            device const uchar* mask, device T* out) {
    key += row_offset(params.key_strides, b, key_head, 0);
    value += row_offset(params.value_strides, b, key_head, 0);
    return {&params, b, query, key, value, mask, out, key, value};
}

/// The work of a sequence's key head in flash_attention.
inline AttentionGroup dense_group(constant const FlashAttentionParams& params,
                                  device const int* context_lens, int b, int key_head) {
    const int G = params.H_q / params.H, keys = keys_of(params, context_lens, b);
    return {params.L, keys, G, params.D, key_head * G, params.causal, params.scale};
}

}  // namespace tiny_llm_ext
