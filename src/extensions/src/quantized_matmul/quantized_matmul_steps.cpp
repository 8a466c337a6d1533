// Which of Week 4's kernels runs. It is chosen before the work is handed to other threads, where no
// caller could catch an error.
#include "src/quantized_matmul/quantized_matmul_steps.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/instruction_set.h"

namespace tiny_llm_ext {

namespace {

ProductStep factored() {
    // [task 4.2.1 choose]
    return quantized_matmul_factored;
    // [/task 4.2.1 choose]
}

// The kernel of an instruction set, which has vectors.
ProductStep vectors([[maybe_unused]] InstructionSet set) {
    // [task 4.2.2 choose]
#if defined(__x86_64__)
    return set == InstructionSet::avx2 ? avx2::quantized_matmul_vectors
                                       : avx512::quantized_matmul_vectors;
#elif defined(__aarch64__)
    return neon::quantized_matmul_vectors;
#else
    return nullptr;
#endif
    // [/task 4.2.2 choose]
}

}  // namespace

ProductStep product_step() {
    const char* variable = std::getenv("TINY_LLM_PRODUCT");
    const std::string name = variable == nullptr ? "" : variable;
    if (name.empty()) {
        return nullptr;
    }
    if (name == "loops") {
        return quantized_matmul_reference;
    }
    if (name == "factored") {
        return factored();
    }
    if (name != "vectors") {
        throw std::invalid_argument("TINY_LLM_PRODUCT is \"" + name +
                                    "\"; it may be loops, factored or vectors.");
    }
    if (instruction_set() == InstructionSet::portable) {
        throw std::invalid_argument(
            "TINY_LLM_PRODUCT is \"vectors\", and the instruction set is portable, which has none; "
            "take factored.");
    }
    return vectors(instruction_set());
}

}  // namespace tiny_llm_ext
