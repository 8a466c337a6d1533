// Where operations run: the one place that knows what counts as a GPU.
//
// On a Mac that is MLX's GPU (common/gpu_metal.cpp). Elsewhere an emulator may stand in for it
// (emulated_metal/emulated_node.cpp).
#pragma once

#include <memory>
#include <string>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Whether operations on this stream run Metal kernels.
bool is_gpu(mx::Stream stream);

/// The stream for an operation's node: the caller's, or the CPU's if that is a GPU's and the GPU
/// cannot compile the operation's kernels. That is found out, and said, once.
/// operation: the name of its folder in src/. dtype: what its kernels are to compute in.
mx::Stream stream_for(const std::string& operation, mx::Dtype dtype, mx::StreamOrDevice s);

/// An operation's node as it goes into the graph: itself, or on an emulated GPU one that evaluates
/// it there.
std::shared_ptr<mx::Primitive> placed(std::shared_ptr<mx::Primitive> operation);

}  // namespace tiny_llm_ext
