// Which version of a matrix multiplication's kernel runs for a shape, and on which grid: what
// matmul and quantized_matmul share on the GPU.
#pragma once

#include "common/metal_launch.h"

namespace tiny_llm_ext {

/// readable: a thread an output.
/// matvec: a simdgroup four outputs, of up to four rows; made for few rows.
/// tile64, tile32: a threadgroup a tile of as many rows and outputs, in the matrix units.
/// tile32_parts: tile32 for every TILE_PART numbers of the rows alone, and a sum of what came out.
enum class MatmulVariant { readable, matvec, tile64, tile32, tile32_parts };

/// The variant by name. Throws std::invalid_argument if there is none.
MatmulVariant matmul_variant_named(const std::string& name);

/// What is fast for M rows, O outputs and I numbers.
///
/// A row's result is the same to the last bit in all tiles. matvec adds up in another order, and so
/// does readable: rows are bitwise the same among up to MATVEC_ROWS, and among more.
MatmulVariant choose_matmul_variant(int64_t M, int64_t O, int64_t I);

constexpr int MATVEC_ROWS = 8;

/// How a variant is started.
struct MatmulGrid {
    std::string variant;  // in the kernel's name: matvec comes with the rows it takes at a time
    Extent groups, threads;
    int64_t parts;  // groups.z: of the sums, in float32, if more than one
};
MatmulGrid matmul_grid(MatmulVariant variant, int64_t M, int64_t O, int64_t I, int max_threads);

/// The sum of `parts` float32 arrays of `size`. Buffers: parts P × size, out.
MetalLaunch sum_parts_launch(int64_t parts, int64_t size, Format format, int max_threads);

}  // namespace tiny_llm_ext
