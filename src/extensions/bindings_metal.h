#pragma once
#include <nanobind/nanobind.h>

namespace tiny_llm_ext {

/// The submodule `metal`: how each operation would start its Metal kernels.
void bind_metal(nanobind::module_& parent);

}  // namespace tiny_llm_ext
