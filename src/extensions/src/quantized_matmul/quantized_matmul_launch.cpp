#include "src/quantized_matmul/quantized_matmul_launch.h"

#include <stdexcept>

#include "src/quantized_matmul/quantized_matmul_params.h"

namespace tiny_llm_ext {

MatmulVariant choose_quantized_matmul_variant(const QuantizedMatmulShape& shape) {
    return shape.format == shape.scale_format ? choose_matmul_variant(shape.M, shape.O, shape.I)
                                              : MatmulVariant::readable;
}

MetalLaunch quantized_matmul_launch(const QuantizedMatmulShape& shape, MatmulVariant variant,
                                    int max_threads) {
    const MatmulGrid grid = matmul_grid(variant, shape.M, shape.O, shape.I, max_threads);
    std::string kernel = kernel_name("quantized_matmul_" + grid.variant, shape.format);
    if (shape.format != shape.scale_format) {
        if (variant != MatmulVariant::readable) {
            throw std::invalid_argument("[metal] expected scales in the dtype of a for variant " +
                                        grid.variant + ", got " + name_of(shape.scale_format));
        }
        kernel = kernel_name(kernel + "_scales", shape.scale_format);
    }
    kernel += "_b" + std::to_string(shape.bits) + "_g" + std::to_string(shape.group_size);
    const QuantizedMatmulParams params = {.M = static_cast<int>(shape.M),
                                          .O = static_cast<int>(shape.O),
                                          .I = static_cast<int>(shape.I)};
    return {.kernel = kernel,
            .groups = grid.groups,
            .threads = grid.threads,
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
