// Instruction set of the CPU kernels, detected on first use.
#pragma once

#include <string>
#include <vector>

#include "common/declare_simd.h"

namespace tiny_llm_ext {

/// In ascending order: each set includes the earlier ones of the same processor architecture.
enum class InstructionSet {
    portable,    // plain C++ on any machine: the reference kernels
    neon,        // every 64-bit ARM processor
    avx2,        // AVX2, FMA and F16C: x86 since 2013
    avx512vnni,  // AVX-512 F, BW, VL, DQ and VNNI: Cascade Lake, Ice Lake and later
    avx512,      // the same and BF16: Zen 4 and later, Sapphire Rapids and later
    amx,         // the same and AMX tiles of int8 and BF16: Sapphire Rapids and later
};

/// The instruction sets supported by this machine, in ascending order.
const std::vector<InstructionSet>& instruction_sets();

/// The best supported instruction set, or the one named by TINY_LLM_CPU_ISA.
///
/// Throws std::invalid_argument if TINY_LLM_CPU_ISA names an unknown or unsupported set.
InstructionSet instruction_set();

/// Whether the processor has the integer dot products that extend `avx2` or `neon`: AVX-VNNI (Alder
/// Lake and later, Zen 5) or DotProd (Apple M1, Neoverse N1 and later). They are not sets of their
/// own, because the sets are ordered and some AVX-512 processors lack AVX-VNNI. Kernels produce the
/// same bits with and without them.
bool has_dot_products();

/// Name of an instruction set: "portable", "neon", "avx2", "avx512vnni", "avx512" or "amx".
std::string name_of(InstructionSet set);

}  // namespace tiny_llm_ext
