// Kernel selection for the fused elementwise operations: norms, RoPE, SwiGLU.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/instruction_set.h"

namespace tiny_llm_ext {

/// Selects the kernel of a fused operation (one that replaces several of MLX's) by the environment
/// variable TINY_LLM_FUSED:
///
///     vectors   the vector kernel; throws std::runtime_error if the learner has not written it
///     loops     the readable reference
///
/// Default: the vector kernel, or the reference if the learner has not written the vector kernel.
/// Throws std::invalid_argument for any other value.
///
/// vectors(set): returns the vector kernel for an instruction set. loops: the reference.
template <typename Kernel>
Kernel fused_kernel(Kernel (*vectors)(InstructionSet set), Kernel loops) {
    const char* text = std::getenv("TINY_LLM_FUSED");
    const std::string name = text == nullptr ? "" : text;
    if (name == "loops") {
        return loops;
    }
    if (!name.empty() && name != "vectors") {
        throw std::invalid_argument("TINY_LLM_FUSED must be loops or vectors, got \"" + name +
                                    "\".");
    }
    const InstructionSet set = instruction_set();
    try {
        return vectors(set);
    } catch (const std::runtime_error&) {
        if (name.empty()) {
            return loops;
        }
        throw;
    }
}

}  // namespace tiny_llm_ext
