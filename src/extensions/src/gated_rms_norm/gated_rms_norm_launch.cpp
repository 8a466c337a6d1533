#include "src/gated_rms_norm/gated_rms_norm_launch.h"

namespace tiny_llm_ext {

MetalLaunch gated_rms_norm_launch(const GatedRmsNormParams& params, Format format,
                                  Format weight_format, int max_threads) {
    return simdgroup_launch(kernel_name("gated_rms_norm_row", format, weight_format), params.M,
                            max_threads, params);
}

}  // namespace tiny_llm_ext
