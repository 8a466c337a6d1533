// The texts of the Metal kernels, which the build puts into the module (metal_sources.py).
#pragma once

#include <map>
#include <string>

namespace tiny_llm_ext::metal {

/// The text of each .metal file, with our headers in it, by the file's name without its ending.
const std::map<std::string, std::string>& sources();

}  // namespace tiny_llm_ext::metal
