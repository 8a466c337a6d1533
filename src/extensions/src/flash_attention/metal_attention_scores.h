// Key visibility and masks, shared by the GPU attention kernels.
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/flash_attention_params.h"

namespace tiny_llm_ext {

using Params = FlashAttentionParams;

/// Number of keys of sequence b: context_lens[b] clamped to 0 … S, or S without context_lens.
inline int keys_of(constant const Params& params, device const int* context_lens, int b) {
    return params.has_context_lens ? metal::clamp(context_lens[b], 0, params.S) : params.S;
}

/// Number of leading keys visible to query l, for S keys and L queries, before any mask.
inline int visible_keys(bool causal, int S, int L, int l) {
    return causal ? metal::clamp(l + 1 + S - L, 0, S) : S;
}

/// Number of leading keys visible to query l of flash_attention, for a sequence of `keys` keys,
/// before any mask.
inline int visible_keys(constant const Params& params, int keys, int l) {
    return visible_keys(params.causal, keys, params.L, l);
}

/// Score plus mask term; −inf if the mask hides the key, even if the score is NaN. Requires a mask.
inline float masked(constant const Params& params, device const uchar* mask, long row, int s,
                    float score) {
    const long i = row + s * params.mask_strides[3];
    float added;
    if (params.mask_kind == ATTENTION_MASK_BOOL) {
        added = mask[i] ? 0.0f : -INFINITY;
    } else if (params.mask_kind == ATTENTION_MASK_FLOAT32) {
        added = reinterpret_cast<device const float*>(mask)[i];
    } else if (params.mask_kind == ATTENTION_MASK_FLOAT16) {
        added = float(reinterpret_cast<device const half*>(mask)[i]);
    } else {
        added = float(reinterpret_cast<device const bfloat*>(mask)[i]);
    }
    return added == -INFINITY ? -INFINITY : score + added;
}

/// Offset, in elements, of the mask terms for a row of scores.
inline long mask_row(constant const Params& params, int b, int head, int l) {
    return b * params.mask_strides[0] + head * params.mask_strides[1] + l * params.mask_strides[2];
}

/// Offset of a row of D elements in query, key or value.
inline long row_offset(constant const long* strides, int b, int head, int token) {
    return b * strides[0] + head * strides[1] + token * strides[2];
}

/// Offset of a row of D elements in out, B×L×H_q×D.
inline long out_offset(constant const Params& params, int b, int head, int l) {
    return ((long(b) * params.L + l) * params.H_q + head) * params.D;
}

/// exp(from − to); 1 if they are equal, since ∞ − ∞ is NaN.
inline float rescale(float from, float to) { return from == to ? 1.0f : metal::exp(from - to); }

/// exp(score − largest); 0 for a hidden key, even if all keys are hidden.
inline float weight_of(float score, float largest) {
    return score == -INFINITY ? 0.0f : metal::exp(score - largest);
}

}  // namespace tiny_llm_ext
