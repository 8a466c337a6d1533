// Kernel variant and grid by shape, shared by matmul and quantized_matmul on the GPU.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// readable: one thread per output.
/// matvec: one simdgroup per four outputs of up to four rows; for few rows.
/// tile64, tile32: one threadgroup per tile of 64×64 or 32×32 outputs, in the matrix units.
/// tile32_split_k: tile32 with a threadgroup per TILE_PART elements of the rows, then a sum of the
///   parts.
enum class MatmulVariant { readable, matvec, tile64, tile32, tile32_split_k };

/// The variant by name. Throws std::invalid_argument for an unknown name.
MatmulVariant matmul_variant_named(const std::string& name);

/// Fastest variant for M rows, O outputs and inner dimension I.
///
/// All tile variants give a row the same bits. matvec and readable have other summation orders, so
/// a row has the same bits for all M up to MATVEC_ROWS, and for all larger M.
MatmulVariant choose_matmul_variant(int64_t M, int64_t O, int64_t I);

constexpr int MATVEC_ROWS = 8;

/// Grid of a variant.
struct MatmulGrid {
    std::string variant;  // in the kernel's name; for matvec, with its rows per pass
    Extent groups, threads;
    int64_t parts;  // groups.z; if above 1, each part is a float32 partial sum
};
MatmulGrid matmul_grid(MatmulVariant variant, int64_t M, int64_t O, int64_t I, int max_threads);

/// The sum of `parts` float32 arrays of `size`. Buffers: parts P × size, out.
MetalLaunch split_k_sum_launch(int64_t parts, int64_t size, Format format, int max_threads);

}  // namespace tiny_llm_ext
