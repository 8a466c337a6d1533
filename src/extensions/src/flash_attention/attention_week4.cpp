// Selects the attention kernel of the course's Week 4: on the calling thread, which can catch the
// exception for an unsupported TINY_LLM_ATTENTION.
#include "src/flash_attention/attention_week4.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "common/instruction_set.h"

namespace tiny_llm_ext {

namespace {

ScoresKernel scores([[maybe_unused]] InstructionSet set) {
    // [task 4.6.1 choose]
    return TINY_LLM_CHOOSE_SIMD(set, attention_scores, nullptr);
    // [/task 4.6.1 choose]
}

SplitKernel online([[maybe_unused]] InstructionSet set) {
    // [task 4.6.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, attention_split, nullptr);
    // [/task 4.6.2 choose]
}

// Whether threads may share a sequence's keys.
bool splits() {
    // [task 4.6.3 choose]
    return true;
    // [/task 4.6.3 choose]
}

}  // namespace

Week4Attention week4_attention() {
    const char* value = std::getenv("TINY_LLM_ATTENTION");
    const std::string name = value == nullptr ? "" : value;
    if (name.empty() || name == "loops") {
        return {.is_selected = name == "loops"};
    }
    if (name != "scores" && name != "online" && name != "split") {
        throw std::invalid_argument(
            "TINY_LLM_ATTENTION must be loops, scores, online or split, got \"" + name + "\".");
    }
    const InstructionSet set = instruction_set();
    if (set == InstructionSet::portable) {
        throw std::invalid_argument("TINY_LLM_ATTENTION=" + name +
                                    " requires a vector instruction set, got portable; use loops.");
    }
    if (name == "scores") {
        return {.is_selected = true, .scores = scores(set)};
    }
    return {.is_selected = true, .part = online(set), .splits = name == "split" && splits()};
}

}  // namespace tiny_llm_ext
