// The one place that knows how a launch becomes commands for the GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/metal_launch.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext::metal {

namespace mx = mlx::core;

/// Has the stream's GPU run a kernel. To be called in eval_gpu; returns before the kernel has run.
///
/// inputs, outputs: the kernel's buffers in their order, with their memory; the launch's params
/// follow them. Throws std::runtime_error if the kernel does not compile, or if its
/// pipeline allows fewer threads than the launch has.
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

/// An array with memory, for what one kernel leaves to another of the same operation. It is kept
/// until they have run.
mx::array temporary(mx::Shape shape, mx::Dtype dtype, const mx::Stream& stream);

}  // namespace tiny_llm_ext::metal
