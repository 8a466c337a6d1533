#include "src/gated_rms_norm/gated_rms_norm_launch.h"

namespace tiny_llm_ext {

MetalLaunch gated_rms_norm_launch(const GatedRmsNormParams& params, Format format,
                                  Format weight_format, int max_threads) {
    const int threads = threads_for(params.M * SIMD_WIDTH, 256, max_threads);
    const std::string kernel = kernel_name("gated_rms_norm_row", format);
    return {
        .kernel = weight_format == format ? kernel : kernel_name(kernel + "_weight", weight_format),
        .groups = {.x = ceil_div(params.M, threads / SIMD_WIDTH)},
        .threads = {.x = threads},
        .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
