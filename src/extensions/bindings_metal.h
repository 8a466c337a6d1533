// Bindings of the submodule tiny_llm_ext.metal.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "common/half.h"

namespace tiny_llm_ext {

/// Adds the submodule `metal`: launch configurations of each operation's Metal kernels.
void bind_metal(nanobind::module_& parent);

/// Adds the launch configurations of matmul and quantized_matmul to the submodule.
void bind_metal_matmul(nanobind::module_& m);

/// Adds the launch configurations of the attention operations to the submodule.
void bind_metal_attention(nanobind::module_& m);

/// Adds the submodule `metal.emulator`, the emulated GPU of builds without Metal.
void bind_emulator(nanobind::module_& m);

/// Format named "float32", "float16" or "bfloat16". Throws std::invalid_argument for other names.
Format format_named(const std::string& name);

}  // namespace tiny_llm_ext
