// Which kernel computes what lies between the products: norms, rotation, SwiGLU.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/instruction_set.h"

namespace tiny_llm_ext {

/// The kernel with vectors, or the readable one, as the environment variable TINY_LLM_FUSED says:
///
///     vectors   with vectors; in a learner's tree this says what is to be written
///     loops     the readable reference
///
/// Without the variable it is the one with vectors, or as long as a learner has to write that one
/// the readable one. Throws std::invalid_argument for another word.
///
/// vectors: chooses by instruction set.
template <typename Kernel>
Kernel fused_kernel(Kernel (*vectors)(InstructionSet set), Kernel loops) {
    const char* text = std::getenv("TINY_LLM_FUSED");
    const std::string name = text == nullptr ? "" : text;
    if (name == "loops") {
        return loops;
    }
    if (!name.empty() && name != "vectors") {
        throw std::invalid_argument("TINY_LLM_FUSED is \"" + name +
                                    "\"; it may be loops or vectors.");
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
