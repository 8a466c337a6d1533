// Launch configurations of matmul and quantized_matmul, for tiny_llm_ext.metal.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bindings_metal.h"
#include "src/matmul/matmul_launch.h"
#include "src/quantized_matmul/quantized_matmul_launch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm_ext {

void bind_metal_matmul(nb::module_& m) {
    m.def(
        "quantized_matmul_launch",
        [](int64_t M, int64_t O, int64_t I, int group_size, int bits, const std::string& dtype,
           const std::optional<std::string>& scales_dtype,
           const std::optional<std::string>& variant, int max_threads) {
            const Format format = format_named(dtype);
            const QuantizedMatmulShape shape = {
                .M = M,
                .O = O,
                .I = I,
                .group_size = group_size,
                .bits = bits,
                .format = format,
                .scale_format = scales_dtype ? format_named(*scales_dtype) : format};
            return quantized_matmul_launch(
                shape,
                variant ? matmul_variant_named(*variant) : choose_quantized_matmul_variant(shape),
                max_threads);
        },
        "M"_a, "O"_a, "I"_a, "group_size"_a, "bits"_a, "dtype"_a, "scales_dtype"_a = nb::none(),
        "variant"_a = nb::none(), "max_threads"_a = MAX_THREADS,
        "Buffers: scales, biases, a, b, out. If P = groups[2] > 1, `out` holds P float32 partial "
        "sums.");

    m.def(
        "matmul_launch",
        [](int64_t M, int64_t O, int64_t I, const std::string& dtype, int64_t a_stride,
           int64_t b_stride, bool aligned, const std::optional<std::string>& variant,
           int max_threads) {
            const MatmulShape shape = {.M = M,
                                       .O = O,
                                       .I = I,
                                       .a_stride = a_stride,
                                       .b_stride = b_stride,
                                       .aligned = aligned,
                                       .format = format_named(dtype)};
            return matmul_launch(
                shape, variant ? matmul_variant_named(*variant) : choose_matmul_variant(M, O, I),
                max_threads);
        },
        "M"_a, "O"_a, "I"_a, "dtype"_a, "a_stride"_a, "b_stride"_a, "aligned"_a = true,
        "variant"_a = nb::none(), "max_threads"_a = MAX_THREADS,
        "Buffers: a, b, out. If P = groups[2] > 1, `out` holds P float32 partial sums.");

    m.def(
        "split_k_sum_launch",
        [](int64_t parts, int64_t size, const std::string& dtype, int max_threads) {
            return split_k_sum_launch(parts, size, format_named(dtype), max_threads);
        },
        "parts"_a, "size"_a, "dtype"_a, "max_threads"_a = MAX_THREADS,
        "Adds up the float32 partial sums of a split-K matmul. Buffers: parts, out.");
}

}  // namespace tiny_llm_ext
