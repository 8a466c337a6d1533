// Dispatch of launches to the GPU.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/metal_launch.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext::metal {

namespace mx = mlx::core;

/// Enqueues a kernel on the stream's GPU, asynchronously. Call from eval_gpu.
///
/// inputs, outputs: the kernel's buffers in order, allocated; the launch's params follow. Throws
/// std::runtime_error if the kernel does not compile, or if its pipeline allows fewer threads than
/// the launch has.
void encode(const mx::Stream& stream, const MetalLaunch& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// Same, for a kernel that works with any number of threads: `launch` receives the pipeline's
/// maximum, which depends on register use, and must not use it to select another kernel.
void encode(const mx::Stream& stream, const std::function<MetalLaunch(int max_threads)>& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// Copies x, any strides, to `out`, of the same shape and separately allocated.
void copy(const mx::array& x, const mx::array& out, const mx::Stream& stream);

/// Prepares an update of x into `out`: `out` shares the memory of x if `overwrite` permits that or
/// x has no other readers, and is a copy otherwise.
void update(const mx::array& x, mx::array& out, bool overwrite, const mx::Stream& stream);

/// `x` in row-major order: itself, or a copy enqueued on the GPU.
mx::array row_contiguous(const mx::array& x, const mx::Stream& stream);

/// An array N..×D as rows with one stride, in elements: itself if possible, otherwise a copy.
struct Rows {
    mx::array array;
    int64_t stride;
};
Rows rows_of(const mx::array& x, const mx::Stream& stream);

/// A temporary array between kernels of one operation, alive until they have run.
mx::array temporary(mx::Shape shape, mx::Dtype dtype, const mx::Stream& stream);

}  // namespace tiny_llm_ext::metal
