// prepack: Weight prepacking (common/prepacked.h) into huge pages.
//
// A decode step streams every weight once, uncached, so each page costs a TLB miss. With 4 KiB
// pages, that is one miss per 64 cache lines, and on a virtual machine each miss walks two page
// tables. Pages of 2 MiB must be requested before the first write, and many arrays are smaller than
// one page. All weights of a model therefore share one allocation: `huge_pages` creates it and
// `prepack_weight` fills it from the front.
//
// `prepack_weight_from_file` reads a matrix from a file a few rows at a time: loading it into
// memory first would touch twice as many pages.
//
// All three functions are eager, so that the loader can free each row-major array as soon as it has
// been prepacked.
#pragma once

#include <cstdint>
#include <string>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Allocates at least `bytes` bytes for prepacked weights, in 2 MiB pages where the system grants
/// these on request (Linux with transparent huge pages).
///
/// Returns P×512 uint64, uninitialized: P blocks of 4 KiB. Throws std::invalid_argument if `bytes`
/// is negative.
mx::array huge_pages(int64_t bytes);

/// Prepacks O×W to (O/R)×W×R (common/prepacked.h). The result shares `memory`, from byte `offset`
/// on. Eager.
///
/// matrix: elements of 2 or 4 bytes; evaluated first if necessary.
/// rows: R, positive; O is a multiple of it.
/// memory: from huge_pages, with space for the matrix at `offset`, a multiple of 64.
/// Throws std::invalid_argument for any other arguments.
mx::array prepack_weight(const mx::array& matrix, int rows, const mx::array& memory,
                         int64_t offset);

/// prepack_weight for a row-major matrix in a file.
///
/// matrix: O×W; only its shape and dtype are used, and it is not evaluated.
/// file: path.
/// begin: byte offset of the matrix in the file.
/// rows, memory, offset: as for prepack_weight.
/// limit_readahead: whether to read ahead only within the matrix, because other processes
///   (tensor-parallel ranks) read the rest of the file.
/// Throws std::invalid_argument as prepack_weight does, and std::runtime_error if the file cannot
/// be read or is truncated.
mx::array prepack_weight_from_file(const mx::array& matrix, const std::string& file, int64_t begin,
                                   int rows, const mx::array& memory, int64_t offset,
                                   bool limit_readahead = false);

}  // namespace tiny_llm_ext
