#include "src/causal_conv1d/causal_conv1d_launch.h"

namespace tiny_llm_ext {

MetalLaunch causal_conv1d_launch(const CausalConv1dParams& params, Format format,
                                 Format weight_format, int max_threads) {
    const int threads = threads_for(params.C, 128, max_threads);
    const std::string kernel = kernel_name("causal_conv1d_channels", format);
    return {
        .kernel = weight_format == format ? kernel : kernel_name(kernel + "_weight", weight_format),
        .groups = {.x = ceil_div(params.C, threads), .y = params.B},
        .threads = {.x = threads},
        .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
