// Selection of the quantized_matmul kernel of the course's Week 4. Runs on the calling thread,
// because an exception in a worker thread could not be caught.
#include "src/quantized_matmul/quantized_matmul_week4.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/instruction_set.h"

namespace tiny_llm_ext {

namespace {

Week4Matmul factored() {
    // [task 4.2.1 choose]
    return quantized_matmul_factored;
    // [/task 4.2.1 choose]
}

// The vector kernel of an instruction set.
Week4Matmul vectors([[maybe_unused]] InstructionSet set) {
    // [task 4.2.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_vectors, nullptr);
    // [/task 4.2.2 choose]
}

Week4Matmul prepacked([[maybe_unused]] InstructionSet set) {
    // [task 4.3.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_prepacked, nullptr);
    // [/task 4.3.2 choose]
}

Week4Matmul prefetched([[maybe_unused]] InstructionSet set) {
    // [task 4.3.3 choose]
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_prefetched, nullptr);
    // [/task 4.3.3 choose]
}

Week4Matmul panels([[maybe_unused]] InstructionSet set) {
    // [task 4.4.1 choose]
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_panels, nullptr);
    // [/task 4.4.1 choose]
}

Week4Matmul pairs([[maybe_unused]] InstructionSet set) {
    // [task 4.4.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_pairs, nullptr);
    // [/task 4.4.2 choose]
}

// Value of an environment variable; empty if it is not set.
std::string environment_variable(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
}

// A vector kernel. rows: rows per pack of the weights that it requires; 0 for row-major weights.
struct VectorKernel {
    const char* name;
    Week4Matmul (*kernel)(InstructionSet set);
    int rows;
};
constexpr VectorKernel VECTOR_KERNELS[] = {
    {"vectors", vectors, 0},
    {"prepacked", prepacked, PACK_ROWS},
    {"prefetched", prefetched, PACK_ROWS},
    {"panels", panels, PACK_ROWS},
    {"pairs", pairs, PACK_ROWS},
};

// The vector kernel named `name`. Throws std::invalid_argument for an unknown name.
const VectorKernel& vector_kernel(const std::string& name) {
    for (const VectorKernel& entry : VECTOR_KERNELS) {
        if (entry.name == name) {
            return entry;
        }
    }
    throw std::invalid_argument(
        "TINY_LLM_MATMUL must be loops, factored, vectors, prepacked, prefetched, "
        "panels or pairs, got \"" +
        name + "\".");
}

}  // namespace

Week4Matmul week4_matmul() {
    const std::string name = environment_variable("TINY_LLM_MATMUL");
    if (name.empty()) {
        return nullptr;
    }
    if (name == "loops") {
        return quantized_matmul_reference;
    }
    if (name == "factored") {
        return factored();
    }
    const VectorKernel& entry = vector_kernel(name);
    if (instruction_set() == InstructionSet::portable) {
        throw std::invalid_argument(
            "TINY_LLM_MATMUL=" + name +
            " requires a vector instruction set, got portable; use factored.");
    }
    return entry.kernel(instruction_set());
}

int week4_pack_rows() {
    const std::string name = environment_variable("TINY_LLM_MATMUL");
    return week4_matmul() == nullptr || name == "loops" || name == "factored"
               ? 0
               : vector_kernel(name).rows;
}

int64_t prefetch_distance() {
    const std::string text = environment_variable("TINY_LLM_PREFETCH");
    if (text.empty()) {
        return 4096;
    }
    constexpr int64_t MAX_BYTES = 1'000'000;
    int64_t bytes = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
    if (error != std::errc() || end != text.data() + text.size() || bytes < 0 ||
        bytes > MAX_BYTES) {
        throw std::invalid_argument("TINY_LLM_PREFETCH must be from 0 to 1000000 bytes, got \"" +
                                    text + "\".");
    }
    return bytes;
}

}  // namespace tiny_llm_ext
