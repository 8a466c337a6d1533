// Dispatch of Metal kernels to the GPU.
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
/// inputs, outputs: allocated arrays, bound to the kernel's buffers 0, 1, … in this order; the
/// launch's params follow. Throws std::runtime_error if the kernel does not compile, or if its
/// pipeline allows fewer threads per threadgroup than the launch has.
void encode(const mx::Stream& stream, const MetalLaunch& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// Enqueues a kernel that works with any number of threads. launch(max_threads) is called with
/// MAX_THREADS, and again if the pipeline allows fewer, because the kernel uses many registers. It
/// must return the same kernel both times.
void encode(const mx::Stream& stream, const std::function<MetalLaunch(int max_threads)>& launch,
            const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

/// Copies x, which may have any strides, to `out`, a row-major array of the same shape in separate
/// memory.
void copy(const mx::array& x, const mx::array& out, const mx::Stream& stream);

/// Prepares an in-place update of x: `out` shares the memory of x if x is row-contiguous and either
/// `overwrite` is set or x has no other readers. Otherwise `out` is a row-contiguous copy.
void update(const mx::array& x, mx::array& out, bool overwrite, const mx::Stream& stream);

/// Returns x if it is row-contiguous, otherwise a row-contiguous copy, enqueued on the GPU.
mx::array row_contiguous(const mx::array& x, const mx::Stream& stream);

/// An array viewed as rows of its last dimension, `stride` elements apart: the array itself if its
/// strides allow it, otherwise a copy.
struct Rows {
    mx::array array;
    int64_t stride;
};
Rows rows_of(const mx::array& x, const mx::Stream& stream);

/// Allocates an intermediate array for the kernels of one operation. It stays alive until they have
/// run.
mx::array temporary(mx::Shape shape, mx::Dtype dtype, const mx::Stream& stream);

}  // namespace tiny_llm_ext::metal
