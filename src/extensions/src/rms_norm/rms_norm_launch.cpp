#include "src/rms_norm/rms_norm_launch.h"

#include "src/rms_norm/rms_norm_params.h"

namespace tiny_llm_ext {

static MetalLaunch launch(const char* variant, int64_t M, const RmsNormParams& params,
                          Format format, int max_threads) {
    const int threads = threads_for(ceil_div(params.D, RMS_NORM_READS), MAX_THREADS, max_threads);
    return {.kernel = kernel_name(variant, format),
            .groups = {.x = M},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

MetalLaunch rms_norm_launch(int64_t M, int D, float eps, int64_t x_stride, Format format,
                            int max_threads) {
    const RmsNormParams params = {.D = D, .eps = eps, .x_stride = x_stride, .y_stride = 0};
    return launch("rms_norm_row", M, params, format, max_threads);
}

MetalLaunch add_rms_norm_launch(int64_t M, int D, float eps, int64_t x_stride, int64_t y_stride,
                                Format format, int max_threads) {
    const RmsNormParams params = {.D = D, .eps = eps, .x_stride = x_stride, .y_stride = y_stride};
    return launch("rms_norm_add_row", M, params, format, max_threads);
}

}  // namespace tiny_llm_ext
