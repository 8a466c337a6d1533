// How threads share the work of Week 4's attention.
#pragma once

#include <vector>

#include "src/flash_attention/attention_week4.h"

namespace tiny_llm_ext {

/// Writes the results of all blocks, which have no keys of their own to wait for, on all threads.
void attend_week4(const std::vector<AttentionRows>& blocks, const Week4Attention& step);

}  // namespace tiny_llm_ext
