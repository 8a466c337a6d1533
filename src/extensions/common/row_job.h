// Arguments of CPU kernels that compute rows independently of one another, without MLX.
//
// A row kernel has the signature RowKernel. Its scalar reference is <op>_reference; its vector
// kernel, compiled once per instruction set (common/declare_simd.h), is <op>.
#pragma once

#include <stdint.h>

#include "common/declare_simd.h"
#include "common/half.h"

namespace tiny_llm_ext {

/// Rows of an array: `width` elements each, `stride` elements apart. Stride 0: one row for all,
/// such as a norm's weight.
struct RowArray {
    void* data;
    int64_t stride, width;
    Format format;
};

/// Activation function of a gated MLP. swigluoai: see swiglu.h.
enum class Activation { silu, gelu_tanh, swigluoai };

/// Limit and slope of swigluoai.
constexpr float SWIGLU_LIMIT = 7, SWIGLU_ALPHA = 1.702f;

/// Scalar arguments; an operation ignores those that it lacks.
struct RowOptions {
    float eps = 0;
    int k = 0;
    bool normalize = false;
    float scale = 1;
    Activation activation = Activation::silu;

    bool operator==(const RowOptions&) const = default;
};

struct RowJob {
    int64_t M, D;   // rows of the outputs; elements per row of the first input
    int64_t cost;   // relative cost of a row: about the number of elements read
    Format format;  // format of the first output
    RowOptions options;
    RowArray inputs[3];   // in the operation's order; data is null if absent
    RowArray outputs[2];  // M rows each; may alias an input
};

/// Computes rows first … last − 1.
using RowKernel = void (*)(const RowJob& job, int64_t first, int64_t last);

/// Declares an operation's reference kernel and its vector kernels.
#define TINY_LLM_DECLARE_ROW_KERNELS(op)                                 \
    void op##_reference(const RowJob& job, int64_t first, int64_t last); \
    TINY_LLM_DECLARE_SIMD(void op(const RowJob& job, int64_t first, int64_t last);)

namespace {  // internal linkage: the linker must not merge copies from different files

/// Address of row m of input or output i.
[[maybe_unused]] inline void* row_of(const RowArray& array, int64_t m) {
    const int64_t size = array.format == Format::float32 ? 4 : 2;
    return static_cast<char*>(array.data) + m * array.stride * size;
}
[[maybe_unused]] inline const void* input_row(const RowJob& job, int i, int64_t m) {
    return row_of(job.inputs[i], m);
}
[[maybe_unused]] inline void* output_row(const RowJob& job, int i, int64_t m) {
    return row_of(job.outputs[i], m);
}

/// Row m's job, whose second input is the row that the third input, uint32 indices below options.k
/// in rows of any width, selects for it.
[[maybe_unused]] inline RowJob with_selected_row(const RowJob& job, int64_t m) {
    const RowArray& indices = job.inputs[2];
    const int64_t i = m / indices.width * indices.stride + m % indices.width;
    const int64_t index = static_cast<const uint32_t*>(indices.data)[i];
    RowJob row = job;
    row.inputs[1].data = row_of(job.inputs[1], index < job.options.k ? index : job.options.k - 1);
    row.inputs[1].stride = 0;
    return row;
}

/// Elementwise reference kernel: output = function(input 0, input 1), in float32. The second input
/// may have one element per row.
template <typename Function>
inline void map_elements(const RowJob& job, int64_t first, int64_t last, const Function& function) {
    const int64_t step = job.inputs[1].width == 1 ? 0 : 1;
    for (int64_t m = first; m < last; m++) {
        for (int64_t i = 0; i < job.D; i++) {
            const float a = load_element(input_row(job, 0, m), i, job.format);
            const float b = load_element(input_row(job, 1, m), i * step, job.format);
            store_element(output_row(job, 0, m), i, job.format, function(a, b));
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext
