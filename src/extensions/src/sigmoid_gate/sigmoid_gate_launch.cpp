#include "src/sigmoid_gate/sigmoid_gate_launch.h"

namespace tiny_llm_ext {

MetalLaunch sigmoid_gate_launch(int64_t M, const SigmoidGateParams& params, Format format,
                                int max_threads) {
    const int threads = threads_for(params.D, 256, max_threads);
    return {.kernel = kernel_name("sigmoid_gate_elements", format),
            .groups = {.x = ceil_div(params.D, threads), .y = M},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
