// Kernel variant and grid by shape, shared by matmul and quantized_matmul on the GPU.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// readable: one thread per output.
/// matvec: one simdgroup per four outputs of up to four rows; for few rows.
/// tile64, tile32: one threadgroup per tile of 64×64 or 32×32 outputs, with simdgroup matrices.
/// tile32_split_k: tile32 with the inner dimension split into parts of TILE_PART elements, one
///   threadgroup each; a second kernel adds the partial sums.
enum class MatmulVariant { readable, matvec, tile64, tile32, tile32_split_k };

/// The variant named `name`. Throws std::invalid_argument for an unknown name.
MatmulVariant matmul_variant_named(const std::string& name);

/// Fastest variant for M rows, O outputs and inner dimension I.
///
/// All tile variants share one summation order; matvec has another. A row's bits therefore depend
/// only on whether M exceeds MATVEC_ROWS, not on M itself.
MatmulVariant choose_matmul_variant(int64_t M, int64_t O, int64_t I);

/// Maximum M for matvec.
constexpr int MATVEC_ROWS = 8;

/// Grid of a variant.
struct MatmulGrid {
    std::string variant;  // part of the kernel's name; matvec includes the rows per simdgroup
    Extent groups, threads;
    int64_t parts;  // equals groups.z; if above 1, the kernel stores float32 partial sums
};
MatmulGrid matmul_grid(MatmulVariant variant, int64_t M, int64_t O, int64_t I, int max_threads);

/// Launch that adds `parts` float32 arrays of `size` elements. Buffers: parts × size, out.
MetalLaunch split_k_sum_launch(int64_t parts, int64_t size, Format format, int max_threads);

}  // namespace tiny_llm_ext
