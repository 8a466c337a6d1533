// State slots of a ragged batch for Metal kernels, clamped as in common/state_slots.h.
#pragma once

#include <metal_stdlib>

namespace tiny_llm_ext {

/// A sequence's tokens first … end − 1, and the slot of the state before its first token; a
/// negative slot means a state of zeros.
struct StatefulSequence {
    int first, end, read_slot;
};

inline StatefulSequence sequence_of(int sequence, int T, int S, device const int* cu_seqlens,
                                    device const int* read_slots) {
    const int first = metal::clamp(cu_seqlens[sequence], 0, T);
    const int slot = read_slots[sequence];
    return {first, metal::clamp(cu_seqlens[sequence + 1], first, T), slot < S ? slot : -1};
}

/// Slot that receives the state after a token; negative if the state is not stored.
inline int write_slot(int token, int S, device const int* write_slots) {
    const int slot = write_slots[token];
    return slot < S ? slot : -1;
}

}  // namespace tiny_llm_ext
