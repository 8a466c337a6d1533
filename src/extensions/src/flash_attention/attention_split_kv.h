// Split-KV scheduling of the attention kernels of the course's Week 4.
#pragma once

#include <vector>

#include "src/flash_attention/attention_week4.h"

namespace tiny_llm_ext {

/// Computes all blocks, which are independent, on all threads.
void attend_week4(const std::vector<AttentionRows>& blocks, const Week4Attention& step);

}  // namespace tiny_llm_ext
