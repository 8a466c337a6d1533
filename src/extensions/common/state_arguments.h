// Arguments of operations that update state slots over a ragged batch.
#pragma once

#include "common/state_slots.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// Throws std::invalid_argument unless cu_seqlens (B+1), read_slots (B) and write_slots (T) are
/// int32 arrays for B sequences and T tokens.
void check_state_slots(const char* operation, int T, const mlx::core::array& cu_seqlens,
                       const mlx::core::array& read_slots, const mlx::core::array& write_slots);

/// Converts the arrays to the struct that kernels read, for S state slots. Call from eval_cpu.
StateSlots state_slots_of(int64_t S, const mlx::core::array& cu_seqlens,
                          const mlx::core::array& read_slots, const mlx::core::array& write_slots,
                          mlx::core::Stream stream);

}  // namespace tiny_llm_ext
