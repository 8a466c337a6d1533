// State slots of a ragged batch, for kernels: plain C++ without MLX.
#pragma once

#include <stdint.h>

namespace tiny_llm_ext {

/// Sequences of a step and the slots of their recurrent states. The values in the arrays are not
/// validated: kernels read them with the functions below, which clamp or reject invalid values.
struct StateSlots {
    int64_t T;                   // tokens
    int64_t B;                   // sequences
    int64_t S;                   // slots
    const int32_t* cu_seqlens;   // B + 1: first token of each sequence, then T
    const int32_t* read_slots;   // B: slot of the state before a sequence's first token
    const int32_t* write_slots;  // T: slot that receives the state after the token
};

namespace {  // internal linkage: see common/half.h

/// Token index `t` clamped to first … T.
[[maybe_unused]] inline int64_t clamped_token(const StateSlots& slots, int64_t t, int64_t first) {
    return t < first ? first : t > slots.T ? slots.T : t;
}

/// A sequence's tokens: first_token … end_token − 1.
[[maybe_unused]] inline int64_t first_token(const StateSlots& slots, int64_t sequence) {
    return clamped_token(slots, slots.cu_seqlens[sequence], 0);
}

[[maybe_unused]] inline int64_t end_token(const StateSlots& slots, int64_t sequence) {
    return clamped_token(slots, slots.cu_seqlens[sequence + 1], first_token(slots, sequence));
}

/// Slot of the state before a sequence's first token; negative for a state of zeros.
[[maybe_unused]] inline int64_t read_slot(const StateSlots& slots, int64_t sequence) {
    const int64_t slot = slots.read_slots[sequence];
    return slot < slots.S ? slot : -1;
}

/// Slot that receives the state after a token; negative if the state is not stored.
[[maybe_unused]] inline int64_t write_slot(const StateSlots& slots, int64_t token) {
    const int64_t slot = slots.write_slots[token];
    return slot < slots.S ? slot : -1;
}

}  // namespace

}  // namespace tiny_llm_ext
