// Row views, allocation and row-parallel loops for operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/threads.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// An array viewed as rows of its last dimension: each row is contiguous, and consecutive rows are
/// `stride` elements apart.
struct Rows {
    const void* data;
    int64_t stride;  // in elements, from one row to the next
};

/// The rows of an input. A view with one row stride (a slice of the last axis, for example) is not
/// copied; any other layout is copied first, as a task of the stream.
///
/// Call from eval_cpu: an array's layout is undefined before evaluation.
Rows rows_of(const mlx::core::array& x, mlx::core::Stream stream);

/// Row stride of an array in elements, or −1 if the rows are not contiguous or have no single
/// stride.
int64_t row_stride(const mlx::core::array& x);

/// Returns x if it is row-contiguous, otherwise a row-contiguous copy, made by a task of the
/// stream.
mlx::core::array row_contiguous(const mlx::core::array& x, mlx::core::Stream stream);

/// A copy of `x` in row-major order, made as a task of the stream.
mlx::core::array copy_of(const mlx::core::array& x, mlx::core::Stream stream);

/// Allocates `out` and returns its address. If x has no other readers and the same layout, `out`
/// takes its memory, so a kernel must read an element of x before it writes that element of `out`.
void* allocate_or_reuse(mlx::core::array& out, const mlx::core::array& x);

/// Allocates `out` and returns its address.
void* allocate(mlx::core::array& out);

/// Prepares an update of inputs[0] by a node with several outputs: outputs[0] shares its memory if
/// there are no other readers, and is a copy otherwise. Call first in eval_cpu, and use the
/// returned inputs: MLX stores the inputs in each output, and this function drops all of these
/// references but one.
const std::vector<mlx::core::array>& update_first(const std::vector<mlx::core::array>& inputs,
                                                  std::vector<mlx::core::array>& outputs,
                                                  mlx::core::Stream stream);

/// Allocates `out`, sequences × heads × tokens × D, with the memory layout sequences × tokens ×
/// heads × D: transposing and flattening the heads then needs no copy. Returns its address.
void* allocate_by_token(mlx::core::array& out);

/// Runs body(first, last) for ranges that partition 0 … rows − 1: on all threads, or on the calling
/// thread alone if the work is below the cost of dispatch.
template <typename Body>
void for_rows(int64_t rows, int64_t elements_per_row, const Body& body) {
    constexpr int64_t ELEMENTS = 2048;  // per chunk, about a microsecond of work
    const int64_t step = std::max<int64_t>(1, ELEMENTS / std::max<int64_t>(1, elements_per_row));
    parallel_for((rows + step - 1) / step,
                 [&](int64_t chunk) { body(chunk * step, std::min(rows, (chunk + 1) * step)); });
}

}  // namespace tiny_llm_ext
