// Split-KV scheduling of the attention kernels of the course's Week 4.
#pragma once

#include <vector>

#include "src/flash_attention/attention_week4.h"

namespace tiny_llm_ext {

/// Computes independent blocks of query rows, in parallel on all threads.
void attend_week4(const std::vector<AttentionRows>& blocks, const Week4Attention& kernel);

}  // namespace tiny_llm_ext
