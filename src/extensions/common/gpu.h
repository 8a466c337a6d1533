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

/// The stream of an operation's node: the caller's, or the CPU's if it is a GPU that cannot compile
/// the operation's kernels. Compilation is attempted once; a failure is logged.
/// operation: name of its folder in src/. dtype: compute dtype of its kernels.
mx::Stream stream_for(const std::string& operation, mx::Dtype dtype, mx::StreamOrDevice s);

/// The graph node of an operation: itself, or a wrapper that evaluates it on an emulated GPU.
std::shared_ptr<mx::Primitive> placed(std::shared_ptr<mx::Primitive> operation);

}  // namespace tiny_llm_ext
