#include "common/instruction_set.h"

#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace tiny_llm_ext {

namespace {

#if defined(__x86_64__)
// Whether the AMX kernels can run. Linux requires a process to request the use of the tile
// registers, because they add 8 KiB to each thread's state.
bool machine_has_amx() {
#if defined(__linux__)
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        return false;
    }
    constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
    if ((edx & AMX_BF16) == 0 || (edx & AMX_TILE) == 0 || (edx & AMX_INT8) == 0) {
        return false;
    }
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}
#endif

std::vector<InstructionSet> find_sets() {
    std::vector<InstructionSet> sets = {InstructionSet::portable};
#if defined(__aarch64__)
    sets.push_back(InstructionSet::neon);
#elif defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
        sets.push_back(InstructionSet::avx2);
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni")) {
            sets.push_back(InstructionSet::avx512vnni);
            if (__builtin_cpu_supports("avx512bf16")) {
                // On Intel's processors, a bfloat16 dot product takes longer than integer ones.
                const bool is_slower = __builtin_cpu_is("intel");
                sets.insert(sets.end() - is_slower, InstructionSet::avx512);
                if (machine_has_amx()) {
                    sets.push_back(InstructionSet::amx);
                }
            }
        }
    }
#endif
    return sets;
}

}  // namespace

bool has_dot_products() {
#if defined(__x86_64__)
    unsigned eax, ebx, ecx, edx;
    constexpr unsigned AVX_VNNI = 1u << 4;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & AVX_VNNI) != 0;
#elif defined(__aarch64__) && defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    return true;
#else
    return false;
#endif
}

std::string name_of(InstructionSet set) {
    switch (set) {
        case InstructionSet::portable:
            return "portable";
        case InstructionSet::neon:
            return "neon";
        case InstructionSet::avx2:
            return "avx2";
        case InstructionSet::avx512vnni:
            return "avx512vnni";
        case InstructionSet::avx512:
            return "avx512";
        case InstructionSet::amx:
            return "amx";
    }
    return "unknown";
}

const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> sets = find_sets();
    return sets;
}

InstructionSet instruction_set() {
    // Read on every call, because tests change the environment variable.
    const char* forced = std::getenv("TINY_LLM_CPU_ISA");
    if (forced == nullptr || *forced == '\0') {
        return instruction_sets().back();
    }
    std::string names;
    for (InstructionSet set : instruction_sets()) {
        if (name_of(set) == forced) {
            return set;
        }
        names += (names.empty() ? "" : ", ") + name_of(set);
    }
    throw std::invalid_argument(
        "TINY_LLM_CPU_ISA must be one of this machine's instruction sets (" + names + "), got \"" +
        std::string(forced) + "\".");
}

}  // namespace tiny_llm_ext
