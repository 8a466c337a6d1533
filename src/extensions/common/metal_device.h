// The one place that knows how a kernel library is found and a launch becomes commands for the GPU.
// common/metal_device.cpp is compiled where MLX has Metal, common/gpu_not_built.cpp elsewhere.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/metal_launch.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext::metal {

namespace mx = mlx::core;

/// Where the compiled kernels are: tiny_llm_ext.metallib beside the module, or nothing if the Metal
/// compiler was not there when the extension was built.
std::string library_path();

/// Has the stream's GPU run a kernel. To be called in eval_gpu; returns before the kernel has run.
///
/// inputs, outputs: the kernel's buffers in their order, with their memory; the launch's params
/// follow them. Throws std::runtime_error if there is no kernel library, or if the pipeline allows
/// fewer threads than the launch has.
void encode(const mx::Stream& stream, const MetalLaunch& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// The same for a kernel that works with any number of threads: `launch` is given how many its
/// pipeline allows, which depends on the registers it needs. It may not choose another kernel then.
void encode(const mx::Stream& stream, const std::function<MetalLaunch(int max_threads)>& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// Copies x, of any strides, into `out`, which has its shape and memory of its own.
void copy(const mx::array& x, const mx::array& out, const mx::Stream& stream);

/// `x` in row-major order: itself, or a copy that the GPU makes first.
mx::array row_contiguous(const mx::array& x, const mx::Stream& stream);

/// An array N..×D as rows at equal distances, in elements: itself where it has them, or a copy.
struct Rows {
    mx::array array;
    int64_t stride;
};
Rows rows_of(const mx::array& x, const mx::Stream& stream);

/// Keeps an array that only a kernel refers to until the kernel has run.
void keep(const mx::array& x, const mx::Stream& stream);

}  // namespace tiny_llm_ext::metal
