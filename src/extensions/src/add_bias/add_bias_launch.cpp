#include "src/add_bias/add_bias_launch.h"

#include "src/add_bias/add_bias_params.h"

namespace tiny_llm_ext {

MetalLaunch add_bias_launch(int64_t M, int O, int64_t x_stride, Format format, int max_threads) {
    const int64_t work = ceil_div(O, ADD_BIAS_READS);
    const int threads = threads_for(work, 256, max_threads);
    const AddBiasParams params = {.O = O, .x_stride = x_stride};
    return {.kernel = kernel_name("add_bias_elements", format),
            .groups = {.x = ceil_div(work, threads), .y = M},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
