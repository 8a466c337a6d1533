// Device placement of operations: MLX's GPU on a Mac (common/gpu_metal.cpp), or the emulator
// elsewhere (emulated_metal/emulated_node.cpp).
#pragma once

#include <memory>
#include <string>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Whether operations on this stream run Metal kernels.
bool is_gpu(mx::Stream stream);

/// Stream on which an operation runs: the caller's, or the CPU's default stream if the caller's is
/// on a GPU whose compiler rejects the operation's kernels. The first call compiles the kernels and
/// logs compile errors.
/// operation: name of its folder in src/. dtype: compute dtype of its kernels.
mx::Stream stream_for(const std::string& operation, mx::Dtype dtype, mx::StreamOrDevice s);

/// Wraps an operation on the emulated GPU's stream in a node that evaluates it on the emulator.
/// Returns an operation on another stream unchanged.
std::shared_ptr<mx::Primitive> wrap_if_emulated(std::shared_ptr<mx::Primitive> operation);

}  // namespace tiny_llm_ext
