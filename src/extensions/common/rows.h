// Arrays as rows: what operations that work row by row need of MLX's arrays and of the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/threads.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// An array N..×D in memory: rows of D neighbours, at equal distances.
struct Rows {
    const void* data;
    int64_t stride;  // in elements, from one row to the next
};

/// The rows of an input. A view whose rows lie at equal distances is read where it is (a slice of
/// the last axis, for example); any other layout is copied first, as a task of the stream.
///
/// To be called in eval_cpu: before evaluation an array does not know its layout.
Rows rows_of(const mlx::core::array& x, mlx::core::Stream stream);

/// The distance of an array's rows, in elements, or −1 if they do not lie at equal distances or are
/// not of neighbours.
int64_t row_stride(const mlx::core::array& x);

/// `x` in row-major order: itself, or a copy made as a task of the stream.
mlx::core::array row_contiguous(const mlx::core::array& x, mlx::core::Stream stream);

/// A copy of `x` in row-major order, made as a task of the stream.
mlx::core::array copy_of(const mlx::core::array& x, mlx::core::Stream stream);

/// Gives `out` memory: that of `x`, if nothing else will read x and it has the same layout, or new.
/// A kernel may then write an element of `out` only after it has read that element of x.
void* allocate_or_reuse(mlx::core::array& out, const mlx::core::array& x);

/// Gives `out` memory of its own.
void* allocate(mlx::core::array& out);

/// Gives `out`, B×H×L×D, memory in which it is laid out as B×L×H×D: swapping the dimensions back
/// and flattening the heads then copies nothing.
void* allocate_by_token(mlx::core::array& out);

/// Runs body(first, last) for ranges that make up 0 … rows − 1: on all threads if that is much
/// work, and on the calling one alone if it is less than handing it over would cost.
template <typename Body>
void for_rows(int64_t rows, int64_t elements_per_row, const Body& body) {
    constexpr int64_t ELEMENTS = 2048;  // in a chunk: a microsecond
    const int64_t step = std::max<int64_t>(1, ELEMENTS / std::max<int64_t>(1, elements_per_row));
    parallel_for((rows + step - 1) / step,
                 [&](int64_t chunk) { body(chunk * step, std::min(rows, (chunk + 1) * step)); });
}

}  // namespace tiny_llm_ext
