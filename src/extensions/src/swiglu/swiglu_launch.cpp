#include "src/swiglu/swiglu_launch.h"

#include "src/swiglu/swiglu_params.h"

namespace tiny_llm_ext {

MetalLaunch swiglu_launch(int64_t M, int I, int64_t gate_stride, int64_t up_stride, Format format,
                          int max_threads) {
    const SwigluParams params = {.I = I, .gate_stride = gate_stride, .up_stride = up_stride};
    return row_launch(kernel_name("swiglu_elements", format), M, ceil_div(I, SWIGLU_READS), 256,
                      max_threads, params);
}

}  // namespace tiny_llm_ext
