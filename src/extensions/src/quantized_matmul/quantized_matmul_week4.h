// Week 4's kernels of quantized_matmul, and which of them runs.
//
// The environment variable TINY_LLM_MATMUL names one, for the model and for measuring:
//
//     loops      the reference, Week 2's three loops
//     factored   what does not depend on the output is computed once for many outputs
//     vectors    as many weights at a time as a vector has lanes
//     prepacked    weights in the order in which they are read, PACK_ROWS rows prepacked
//     prefetched    the same, and what is read next is prefetched: TINY_LLM_PREFETCH bytes ahead
//     panels     weights are unpacked once for many rows of activations
//     pairs      the same, with bfloat16 dot products where the instruction set has them
//
// Without the variable this machine's best kernel runs. The first three read weights by row.
#pragma once

#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

/// How many outputs such a kernel is given at a time, but for the last ones: a multiple of
/// PACK_ROWS.
constexpr int64_t WEEK4_OUTPUTS = 64;

/// The kernel that TINY_LLM_MATMUL names, or nullptr without it. Throws std::invalid_argument for
/// another name, and for a kernel with vectors where the instruction set has none.
Week4Matmul week4_matmul();

/// How many rows of weights the kernel that TINY_LLM_MATMUL names wants prepacked; 0 if it reads
/// weights by row, and without the variable. Throws as `week4_matmul` does.
int week4_pack_rows();

/// How far ahead weights are prefetched, in bytes: TINY_LLM_PREFETCH, or 4,096. Throws
/// std::invalid_argument if the variable is no whole number of bytes up to a million.
int64_t fetch_ahead();

}  // namespace tiny_llm_ext
