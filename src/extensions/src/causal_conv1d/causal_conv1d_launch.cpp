#include "src/causal_conv1d/causal_conv1d_launch.h"

namespace tiny_llm_ext {

MetalLaunch causal_conv1d_launch(const CausalConv1dParams& params, Format format,
                                 Format weight_format, int max_threads) {
    return row_launch(kernel_name("causal_conv1d_channels", format, weight_format), params.B,
                      params.C, 128, max_threads, params);
}

}  // namespace tiny_llm_ext
