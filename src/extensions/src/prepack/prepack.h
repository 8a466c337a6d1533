// Prepacking weights (common/prepacked.h says what that is), into memory with large pages.
//
// A step of decoding reads every weight once, from a place that nothing remembers: what a core
// needs first is the page's address. With pages of 4 KB it looks up a new one every 64 cache lines,
// and on a virtual machine each look-up is two. Pages of 2 MB have to be asked for before anything
// is written, and an array of a megabyte is less than one. So all weights of a model share one
// piece of memory: `large_pages` makes it, `prepack_weight` fills it from the front.
//
// A matrix that is still in a file need not be read into memory first, which would touch twice as
// many pages: `prepack_weight_from_file` reads a few rows at a time.
//
// All work at once, not lazily: loading drops the rows of an array as soon as it was moved.
#pragma once

#include <cstdint>
#include <string>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// New memory of at least `bytes` bytes, for prepacked weights: in pages of 2 MB where the system
/// gives those for the asking (Linux with transparent huge pages).
///
/// Returns P×512 uint64, whatever is in them. Throws std::invalid_argument for a negative number.
mx::array large_pages(int64_t bytes);

/// O×W -> (O/R)×W×R, written `offset` bytes into `memory`, which it shares: see
/// common/prepacked.h. It is done at once, not lazily.
///
/// matrix: numbers of 2 or 4 bytes. Computed first if need be.
/// rows: R, how many go together; positive, and O is a multiple of it.
/// memory: of large_pages; room for all of the matrix from `offset` on, a multiple of 64.
/// Throws std::invalid_argument for anything else.
mx::array prepack_weight(const mx::array& matrix, int rows, const mx::array& memory,
                         int64_t offset);

/// The same for a matrix that is read from a file, in which it is stored by row.
///
/// matrix: O×W; only its shape and dtype are looked at, and it is not computed.
/// file: its path.
/// begin: the byte of the file with which the matrix begins.
/// rows, memory, offset: as of prepack_weight.
/// alone: the disk is to read nothing behind the matrix, which is another process's to read.
/// Throws std::invalid_argument as prepack_weight does, and std::runtime_error if the file cannot
/// be read or ends too early.
mx::array prepack_weight_from_file(const mx::array& matrix, const std::string& file, int64_t begin,
                                   int rows, const mx::array& memory, int64_t offset,
                                   bool alone = false);

}  // namespace tiny_llm_ext
