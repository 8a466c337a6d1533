// Runs the named test, or all tests, for every instruction set that this processor supports, or
// only for the one named by TINY_LLM_CPU_ISA. Exit status 0 on success. `kernel_tests --list`
// prints the tests' names.
#include "tests/kernel_tests.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace tiny_llm_ext::tests {

namespace {

struct NamedTest {
    const char* name;
    Test test;
};

std::vector<NamedTest>& all_tests() {
    static std::vector<NamedTest> tests;
    return tests;
}

int64_t checks = 0, failures = 0;

}  // namespace

void count_check() { checks++; }

void count_failure(const std::string& message) {
    if (failures++ < 10) {
        std::printf("  FAILED: %s\n", message.c_str());
    }
}

uint32_t Random::bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 32);
}

float Random::number() { return static_cast<float>(bits() >> 8) * 0x1p-23f - 1 + 0x1p-24f; }

std::vector<uint16_t> Random::halves(int64_t count, Format format, float scale) {
    std::vector<uint16_t> numbers(count);
    for (int64_t i = 0; i < count; i++) {
        store_element(numbers.data(), i, format, scale * number());
    }
    return numbers;
}

Registration::Registration(const char* name, Test test) { all_tests().push_back({name, test}); }

void list_tests() {
    for (const NamedTest& test : all_tests()) {
        std::printf("%s\n", test.name);
    }
}

// Runs the named test, or all tests for nullptr. Returns whether at least one ran and none failed.
bool run(const char* name) {
    std::vector<InstructionSet> sets = instruction_sets();
    const char* forced = std::getenv("TINY_LLM_CPU_ISA");
    if (forced != nullptr && *forced != '\0') {
        sets = {instruction_set()};  // throws if unsupported
    }
    bool found = false;
    for (InstructionSet set : sets) {
        if (set == InstructionSet::portable) {
            continue;
        }
        for (const NamedTest& test : all_tests()) {
            if (name != nullptr && std::strcmp(name, test.name) != 0) {
                continue;
            }
            found = true;
            const int64_t checks_before = checks, failures_before = failures;
            test.test(set);
            std::printf("%s %s: %lld checks, %lld failed\n", name_of(set).c_str(), test.name,
                        static_cast<long long>(checks - checks_before),
                        static_cast<long long>(failures - failures_before));
        }
    }
    return found && failures == 0;
}

}  // namespace tiny_llm_ext::tests

int main(int argc, char** argv) {
    const char* name = argc > 1 ? argv[1] : nullptr;
    if (name != nullptr && std::strcmp(name, "--list") == 0) {
        tiny_llm_ext::tests::list_tests();
        return 0;
    }
    try {
        return tiny_llm_ext::tests::run(name) ? 0 : 1;
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
        return 2;
    }
}
