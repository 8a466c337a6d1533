#pragma once

#include <optional>
#include <string>

#include "mlx/array.h"

namespace tiny_llm_ext {

/// Creates an array of zeros that uses no physical memory until it is written.
///
/// The array starts at a memory page. MLX allocates it and counts it as active memory, although
/// it does not use memory yet.
mlx::core::array reserve_zeros(const mlx::core::Shape& shape, mlx::core::Dtype dtype);

/// Creates an array whose memory is a file's bytes from offset `begin` on, a multiple of the item
/// size. Pages are read when they are first accessed, and the system may drop and reread them.
/// std::nullopt on macOS and on a GPU. Throws std::runtime_error if the file cannot be mapped.
std::optional<mlx::core::array> map_file(const mlx::core::Shape& shape, mlx::core::Dtype dtype,
                                         const std::string& file, int64_t begin);

/// Returns the physical memory of rows [first, last) of an array from `reserve_zeros`, whose
/// contents are then undefined. Keeps memory pages that contain other rows. A no-op on macOS and on
/// a GPU.
void release_rows(const mlx::core::array& x, int first, int last);

/// Allocates the physical memory of rows [0, last) of an array from `reserve_zeros`.
void populate_rows(const mlx::core::array& x, int last);

}  // namespace tiny_llm_ext
