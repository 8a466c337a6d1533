// Runs the matrix multiplications of one operation, on all threads.
#pragma once

#include <vector>

#include "common/instruction_set.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

using QuantizedMatmulJobs = std::vector<QuantizedMatmulJob>;

/// Computes all jobs, on all threads. Consecutive jobs with the same activations and number of rows
/// share the converted activations. Must not be called within parallel_for.
void run(const QuantizedMatmulJobs& jobs, InstructionSet set);

}  // namespace tiny_llm_ext
