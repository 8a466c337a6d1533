// Arguments of operations that update state slots over a ragged batch.
#pragma once

#include "common/state_slots.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// Checks the shapes B+1 of cu_seqlens, B of read_slots and T of write_slots, and that all are
/// int32.
void check_state_slots(const char* operation, int T, const mlx::core::array& cu_seqlens,
                       const mlx::core::array& read_slots, const mlx::core::array& write_slots);

/// The same arrays as a kernel's argument; S: number of slots. Call from eval_cpu.
StateSlots state_slots_of(int64_t S, const mlx::core::array& cu_seqlens,
                          const mlx::core::array& read_slots, const mlx::core::array& write_slots,
                          mlx::core::Stream stream);

}  // namespace tiny_llm_ext
