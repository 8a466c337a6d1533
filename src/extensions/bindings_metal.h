// Bindings of the submodule tiny_llm_ext.metal.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "common/half.h"

namespace tiny_llm_ext {

/// Adds the submodule `metal`: launches of each operation's Metal kernels.
void bind_metal(nanobind::module_& parent);

/// Adds the launches of the matrix multiplications.
void bind_metal_matmul(nanobind::module_& m);

/// Adds the launches of attention.
void bind_metal_attention(nanobind::module_& m);

/// Adds the submodule `metal.emulator`, the emulated GPU of builds without Metal.
void bind_emulator(nanobind::module_& m);

/// A dtype by name. Throws std::invalid_argument for an unknown name.
Format format_named(const std::string& name);

}  // namespace tiny_llm_ext
