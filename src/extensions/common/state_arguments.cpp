#include "common/state_arguments.h"

#include "common/checks.h"
#include "common/rows.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

void check_state_slots(const char* operation, int T, const mx::array& cu_seqlens,
                       const mx::array& read_slots, const mx::array& write_slots) {
    check(read_slots.dtype() == mx::int32 && write_slots.dtype() == mx::int32 &&
              cu_seqlens.dtype() == mx::int32,
          operation, "expected cu_seqlens, read_slots and write_slots in int32, got ",
          cu_seqlens.dtype(), ", ", read_slots.dtype(), " and ", write_slots.dtype());
    check(read_slots.ndim() == 1, operation,
          "expected read_slots with one slot per sequence, got shape ", read_slots.shape());
    const mx::Shape bounds = {read_slots.shape(0) + 1};
    check(cu_seqlens.shape() == bounds, operation, "expected cu_seqlens of shape ", bounds,
          ", one more than read_slots, got ", cu_seqlens.shape());
    check(write_slots.shape() == mx::Shape{T}, operation, "expected write_slots of shape (", T,
          "), one per token, got ", write_slots.shape());
}

StateSlots state_slots_of(int64_t S, const mx::array& cu_seqlens, const mx::array& read_slots,
                          const mx::array& write_slots, mx::Stream stream) {
    return {
        .T = write_slots.shape(0),
        .B = read_slots.shape(0),
        .S = S,
        .cu_seqlens = row_contiguous(cu_seqlens, stream).data<int32_t>(),
        .read_slots = row_contiguous(read_slots, stream).data<int32_t>(),
        .write_slots = row_contiguous(write_slots, stream).data<int32_t>(),
    };
}

}  // namespace tiny_llm_ext
