#include "src/add_bias/add_bias_launch.h"

#include "src/add_bias/add_bias_params.h"

namespace tiny_llm_ext {

MetalLaunch add_bias_launch(int64_t M, int O, int64_t x_stride, Format format, int max_threads) {
    const AddBiasParams params = {.O = O, .x_stride = x_stride};
    return row_launch(kernel_name("add_bias_elements", format), M, ceil_div(O, ADD_BIAS_READS), 256,
                      max_threads, params);
}

}  // namespace tiny_llm_ext
