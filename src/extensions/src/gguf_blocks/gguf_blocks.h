// gguf_blocks: Conversion of GGUF blocks to MLX's quantization formats.
//
// A block holds 32 or 256 weights (`K` types) with their scales, in llama.cpp's layout. In MLX's
// formats, weight = q · scale + bias in groups of 32, and the first of the integers in a word has
// the lowest bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mlx/mlx.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Reads a matrix of GGUF blocks and converts it to MLX's formats with groups of 32. Eager.
///
/// Integers are unchanged. Scales and biases of Q4_K and Q5_K, products of a float16 and a 6-bit
/// integer, are rounded to float16. Q6_K has groups of 16, of which each two share a scale in the
/// result: a quarter of the larger one. The group with the larger scale stays exact, except for
/// rounding to float16, and the error of the other is at most an eighth of the larger scale. If two
/// scales differ only in sign, the error of both is at most about an eighth of them.
///
/// file, begin: path, and byte offset of the first block.
/// type: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4.
/// rows, columns: O and I; I is a multiple of the block's number of weights.
/// bits: bits per integer of the result: 4 for Q4 and MXFP4, 5 or 8 for Q5, 8 for Q6 and Q8.
/// Returns integers O×(I · bits/32) uint32, scales O×(I/32) float16 (MXFP4: uint8) and, unless the
/// type is MXFP4, biases O×(I/32) float16.
/// Throws std::invalid_argument for any other arguments, and std::runtime_error if the file cannot
/// be read or is truncated.
std::vector<mx::array> read_gguf_blocks(const std::string& file, int64_t begin,
                                        const std::string& type, int rows, int columns, int bits);

}  // namespace tiny_llm_ext
