// Selection of the quantized_matmul kernels of the course's Week 4.
//
// The environment variable TINY_LLM_MATMUL selects one, for the model and for benchmarks:
//
//     loops       Week 2's reference: three loops
//     factored    terms independent of the output are computed once for many outputs
//     vectors     one weight per vector lane
//     prepacked   weights in read order, PACK_ROWS rows per pack
//     prefetched  prepacked, with prefetching TINY_LLM_PREFETCH bytes ahead
//     panels      weights are unpacked once for many rows of activations
//     pairs       panels with bfloat16 dot products where the instruction set has them
//
// By default the machine's fastest kernel runs. The first three read row-major weights.
#pragma once

#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

/// Outputs per chunk of work; the last chunk may have fewer. A multiple of PACK_ROWS.
constexpr int64_t WEEK4_OUTPUTS = 64;

/// The kernel selected by TINY_LLM_MATMUL, or nullptr if it is not set. Throws
/// std::invalid_argument for an unknown name, and for a vector kernel with the portable instruction
/// set.
Week4Matmul week4_matmul();

/// Rows per pack of the kernel selected by TINY_LLM_MATMUL; 0 if it reads row-major weights, or
/// TINY_LLM_MATMUL is not set. Throws as `week4_matmul` does.
int week4_pack_rows();

/// Prefetch distance of weights in bytes: TINY_LLM_PREFETCH, or 4,096. Throws std::invalid_argument
/// unless TINY_LLM_PREFETCH is an integer from 0 to 1,000,000.
int64_t prefetch_distance();

}  // namespace tiny_llm_ext
