// Macros that declare and select kernels compiled once per instruction set.
//
// A kernel written with common/simd.h is one file, <op>_simd.cpp, compiled once per instruction set
// into a namespace named after the set. TINY_LLM_DECLARE_SIMD declares its functions in all of
// these namespaces. TINY_LLM_CHOOSE_SIMD selects a namespace's function, or the reference kernel if
// no namespace matches. TINY_LLM_CHOOSE_AMX selects namespace amx, for which only attention's files
// are compiled, or `otherwise`.
#pragma once

#if defined(__x86_64__)
#define TINY_LLM_DECLARE_SIMD(...) \
    namespace avx2 {               \
    __VA_ARGS__                    \
    }                              \
    namespace avx512vnni {         \
    __VA_ARGS__                    \
    }                              \
    namespace avx512 {             \
    __VA_ARGS__                    \
    }                              \
    namespace amx {                \
    __VA_ARGS__                    \
    }
#define TINY_LLM_CHOOSE_SIMD(set, kernel, reference)            \
    ((set) >= InstructionSet::avx512       ? avx512::kernel     \
     : (set) == InstructionSet::avx512vnni ? avx512vnni::kernel \
     : (set) == InstructionSet::avx2       ? avx2::kernel       \
                                           : reference)
#define TINY_LLM_CHOOSE_AMX(set, kernel, otherwise) \
    ((set) == InstructionSet::amx ? amx::kernel : (otherwise))
#elif defined(__aarch64__)
#define TINY_LLM_DECLARE_SIMD(...) \
    namespace neon {               \
    __VA_ARGS__                    \
    }
#define TINY_LLM_CHOOSE_SIMD(set, kernel, reference) \
    ((set) == InstructionSet::neon ? neon::kernel : reference)
#define TINY_LLM_CHOOSE_AMX(set, kernel, otherwise) (otherwise)
#else
#define TINY_LLM_DECLARE_SIMD(...)
#define TINY_LLM_CHOOSE_SIMD(set, kernel, reference) (reference)
#define TINY_LLM_CHOOSE_AMX(set, kernel, otherwise) (otherwise)
#endif
