// Week 4's kernels of quantized_matmul, and which of them runs.
//
// The environment variable TINY_LLM_PRODUCT names one, for the model and for measuring:
//
//     loops      the reference, Week 2's three loops
//     factored   what does not depend on the output is computed once for many outputs
//     vectors    as many weights at a time as a vector has lanes
//
// Without the variable this machine's best kernel runs. Those of Week 4 read weights by row.
#pragma once

#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

/// How many outputs such a kernel is given at a time, but for the last ones.
constexpr int64_t STEP_OUTPUTS = 64;

/// The kernel that TINY_LLM_PRODUCT names, or nullptr without it. Throws std::invalid_argument for
/// another name, and for vectors where the instruction set has none.
ProductStep product_step();

}  // namespace tiny_llm_ext
