// Launch configuration of a Metal kernel, in plain C++ without Metal or MLX.
//
// An operation's eval_gpu maps shapes to a MetalLaunch and dispatches it (common/metal_device.h).
// Larger operations do so in src/<op>/<op>_launch.h, and tests run the same launch in the emulator
// (tiny_llm_ext.metal in Python): a grid too small for a shape is detected without a GPU.
//
// A kernel's scalar parameters are a struct in src/<op>/<op>_params.h, which host and kernel
// include. int has 32 bits and long 64 on both sides, so the struct has the same layout. The order
// of a kernel's buffers is: inputs, outputs, params.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "common/half.h"

namespace tiny_llm_ext {

static_assert(sizeof(int) == 4 && sizeof(long) == 8, "params structs have Metal's sizes");

/// Lanes per simdgroup, and Apple's limits per threadgroup: number of threads, and bytes of
/// threadgroup memory.
constexpr int SIMD_WIDTH = 32;
constexpr int MAX_THREADS = 1024;
constexpr int MAX_THREADGROUP_BYTES = 32768;

/// Number of threads or threadgroups along each axis.
struct Extent {
    int64_t x = 1, y = 1, z = 1;
    int64_t count() const { return x * y * z; }
};

struct MetalLaunch {
    std::string kernel;           // <op>_<variant>_<dtype>
    Extent groups;                // threadgroups in the grid
    Extent threads;               // threads in a threadgroup
    int threadgroup_bytes = 0;    // size of [[threadgroup(0)]]; 0 if the kernel has none
    std::vector<uint8_t> params;  // bytes of the kernel's params struct
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// Threads per threadgroup for `work` items: a multiple of SIMD_WIDTH, at most `preferred` and at
/// most `max_threads`, the pipeline's limit (maxTotalThreadsPerThreadgroup).
constexpr int threads_for(int64_t work, int preferred, int max_threads) {
    const int64_t most = std::min(preferred, max_threads) / SIMD_WIDTH * SIMD_WIDTH;
    return static_cast<int>(std::clamp<int64_t>(round_up(work, SIMD_WIDTH), SIMD_WIDTH, most));
}

/// Name of a dtype: the suffix of the names of kernels instantiated for it.
inline const char* name_of(Format format) {
    return format == Format::float32   ? "float32"
           : format == Format::float16 ? "float16"
                                       : "bfloat16";
}

inline std::string kernel_name(const std::string& operation_and_variant, Format format) {
    return operation_and_variant + "_" + name_of(format);
}

/// Name of a kernel whose weights may have another dtype than its activations.
inline std::string kernel_name(const std::string& operation_and_variant, Format format,
                               Format weight_format) {
    const std::string kernel = kernel_name(operation_and_variant, format);
    return weight_format == format ? kernel : kernel_name(kernel + "_weight", weight_format);
}

template <typename Params>
std::vector<uint8_t> bytes_of(const Params& params) {
    std::vector<uint8_t> bytes(sizeof params);
    std::memcpy(bytes.data(), &params, sizeof params);
    return bytes;
}

/// Launch with `work` threads for each of `rows` rows: threads along x, rows along y.
template <typename Params>
MetalLaunch row_launch(std::string kernel, int64_t rows, int64_t work, int preferred,
                       int max_threads, const Params& params) {
    const int threads = threads_for(work, preferred, max_threads);
    return {.kernel = std::move(kernel),
            .groups = {.x = ceil_div(work, threads), .y = rows},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

/// Launch with one simdgroup for each of `items` items.
template <typename Params>
MetalLaunch simdgroup_launch(std::string kernel, int64_t items, int max_threads,
                             const Params& params) {
    const int threads = threads_for(items * SIMD_WIDTH, 256, max_threads);
    return {.kernel = std::move(kernel),
            .groups = {.x = ceil_div(items, threads / SIMD_WIDTH)},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
