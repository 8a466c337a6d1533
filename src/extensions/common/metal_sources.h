// Sources of the Metal kernels, embedded by the build (metal_sources.py).
#pragma once

#include <map>
#include <string>

namespace tiny_llm_ext::metal {

/// Source of each .metal file with project headers inlined, by file name without suffix.
const std::map<std::string, std::string>& sources();

}  // namespace tiny_llm_ext::metal
