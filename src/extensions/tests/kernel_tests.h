// Shared helpers of the kernel tests.
//
// To test a kernel, keep its scalar reference in src/<op>/<op>_reference.cpp, without MLX headers
// (kernels.cmake finds it by name), define tests with KERNEL_TEST in <op>_test.cpp, and add that
// file to CMakeLists.txt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/half.h"
#include "common/instruction_set.h"

namespace tiny_llm_ext::tests {

void count_check();
void count_failure(const std::string& message);

/// Counts a check, and a failure if `condition` is false. describe() returns the message, printed
/// for the first few failures.
template <typename Describe>
void expect(bool condition, const Describe& describe) {
    count_check();
    if (!condition) {
        count_failure(describe());
    }
}

/// Deterministic random numbers, identical on every machine.
class Random {
   public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t bits();
    /// Uniform in (−1, 1).
    float number();
    /// `count` elements of a 16-bit format, uniform in (−scale, scale).
    std::vector<uint16_t> halves(int64_t count, Format format, float scale = 1);

   private:
    uint64_t state_;
};

/// Buffer with guard elements on both sides, which a kernel must not modify.
template <typename T>
class Guarded {
   public:
    explicit Guarded(int64_t count) : memory_(count + 2 * MARGIN, GUARD) {}
    T* data() { return memory_.data() + MARGIN; }
    const T* data() const { return memory_.data() + MARGIN; }
    T operator[](int64_t i) const { return memory_[MARGIN + i]; }
    bool intact() const {
        for (int64_t i = 0; i < MARGIN; i++) {
            if (memory_[i] != GUARD || memory_[memory_.size() - 1 - i] != GUARD) {
                return false;
            }
        }
        return true;
    }

   private:
    static constexpr int64_t MARGIN = 64;
    static constexpr T GUARD = static_cast<T>(0x5a5b);
    std::vector<T> memory_;
};

/// A test. Runs once per instruction set under test, except the portable one, because its kernels
/// are the references.
using Test = void (*)(InstructionSet set);
struct Registration {
    Registration(const char* name, Test test);
};

}  // namespace tiny_llm_ext::tests

#define KERNEL_TEST(name)                                                               \
    static void name(tiny_llm_ext::InstructionSet set);                                 \
    static const tiny_llm_ext::tests::Registration registration_of_##name(#name, name); \
    static void name([[maybe_unused]] tiny_llm_ext::InstructionSet set)
