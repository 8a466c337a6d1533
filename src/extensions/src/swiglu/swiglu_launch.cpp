#include "src/swiglu/swiglu_launch.h"

#include "src/swiglu/swiglu_params.h"

namespace tiny_llm_ext {

MetalLaunch swiglu_launch(int64_t M, int I, int64_t gate_stride, int64_t up_stride, Format format,
                          int max_threads) {
    const int64_t work = ceil_div(I, SWIGLU_READS);
    const int threads = threads_for(work, 256, max_threads);
    const SwigluParams params = {.I = I, .gate_stride = gate_stride, .up_stride = up_stride};
    return {.kernel = kernel_name("swiglu_elements", format),
            .groups = {.x = ceil_div(work, threads), .y = M},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
