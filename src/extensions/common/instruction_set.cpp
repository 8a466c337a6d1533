#include "common/instruction_set.h"

#include <cstdlib>
#include <stdexcept>

namespace tiny_llm_ext {

namespace {

bool machine_has_avx512() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

}  // namespace

std::string name_of(InstructionSet set) {
    return set == InstructionSet::avx512 ? "avx512" : "portable";
}

InstructionSet instruction_set() {
    // Not cached: tests change the variable, and asking the processor costs nothing beside a
    // kernel.
    const bool has_avx512 = machine_has_avx512();
    const char* forced = std::getenv("TINY_LLM_CPU_ISA");
    if (forced == nullptr || *forced == '\0') {
        return has_avx512 ? InstructionSet::avx512 : InstructionSet::portable;
    }
    const std::string name = forced;
    if (name == "portable") {
        return InstructionSet::portable;
    }
    if (name == "avx512" && has_avx512) {
        return InstructionSet::avx512;
    }
    throw std::invalid_argument("TINY_LLM_CPU_ISA is \"" + name + "\"; this machine has portable" +
                                (has_avx512 ? " and avx512." : " only."));
}

}  // namespace tiny_llm_ext
