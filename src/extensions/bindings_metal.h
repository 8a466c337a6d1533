// tiny_llm_ext.metal, in several files.
#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "common/half.h"

namespace tiny_llm_ext {

/// The submodule `metal`: how each operation would start its Metal kernels.
void bind_metal(nanobind::module_& parent);

/// Of these, the matrix multiplications.
void bind_metal_matmul(nanobind::module_& m);

/// And attention.
void bind_metal_attention(nanobind::module_& m);

/// The submodule `metal.emulator`, where the build has no Metal: what stands in for a GPU.
void bind_emulator(nanobind::module_& m);

/// A dtype by name. Throws std::invalid_argument if there is none.
Format format_named(const std::string& name);

}  // namespace tiny_llm_ext
