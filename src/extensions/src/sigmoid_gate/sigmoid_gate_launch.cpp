#include "src/sigmoid_gate/sigmoid_gate_launch.h"

namespace tiny_llm_ext {

MetalLaunch sigmoid_gate_launch(int64_t M, const SigmoidGateParams& params, Format format,
                                int max_threads) {
    return row_launch(kernel_name("sigmoid_gate_elements", format), M, params.D, 256, max_threads,
                      params);
}

}  // namespace tiny_llm_ext
