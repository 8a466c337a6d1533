// Which vector instructions the kernels may use, found out when the module is first used.
#pragma once

#include <string>

namespace tiny_llm_ext {

enum class InstructionSet {
    portable,  // plain C++, any machine: the reference
    avx512,    // AVX-512 F, BW, VL, DQ and BF16: Zen 4 and later, Sapphire Rapids and later
};

/// The best set that this machine has, or the one that TINY_LLM_CPU_ISA names.
///
/// Throws std::invalid_argument if the variable names a set that is unknown or not on this machine.
InstructionSet instruction_set();

/// "portable" or "avx512".
std::string name_of(InstructionSet set);

}  // namespace tiny_llm_ext
