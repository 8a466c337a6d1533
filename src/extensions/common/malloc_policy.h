#pragma once

#include <cstddef>

#include "mlx/allocator.h"

namespace tiny_llm_ext {

/// Makes glibc retain up to 256 MiB of freed memory for reuse.
///
/// On a CPU, MLX allocates every array with malloc. By default glibc returns large blocks to the
/// system when they are freed, and each new block faults in zeroed 4 KiB pages: 34,000 page faults
/// in a 512-token prefill of 0.7 s, at least 5 % of its time. No-op with other C libraries.
void configure_malloc();

/// Allocates a buffer with mmap: its pages take no memory until written, and read as zeros. Buffers
/// below 1 MiB, and all buffers with C libraries other than glibc, are ordinary malloc blocks.
/// Throws std::runtime_error if the allocation fails, where MLX returns a null buffer.
mlx::core::allocator::Data malloc_mapped(size_t bytes);

}  // namespace tiny_llm_ext
