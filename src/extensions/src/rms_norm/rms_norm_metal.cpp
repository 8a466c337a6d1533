// rms_norm and add_rms_norm on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/rms_norm/rms_norm.h"
#include "src/rms_norm/rms_norm_launch.h"

namespace tiny_llm_ext {

void RmsNorm::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    const bool adds = inputs.size() == 3;
    const auto& x = inputs.front();
    const auto& y = inputs[1];  // the weight if there is no addition
    if (adds) {
        allocate_or_reuse(outputs[0], x);
        allocate_or_reuse(outputs[1], y);  // safe, as y's row is read before out's is written
    } else {
        allocate_or_reuse(outputs[0], x);
    }
    if (x.size() == 0) {
        return;
    }
    const int D = x.shape(-1);
    const auto M = static_cast<int64_t>(x.size()) / D;
    const Format format = format_of(x.dtype());
    const auto weight = metal::row_contiguous(inputs.back(), stream());
    const auto [x_rows, x_stride] = metal::rows_of(x, stream());
    if (!adds) {
        const auto launch = [&, stride = x_stride](int max_threads) {
            return rms_norm_launch(M, D, eps_, stride, format, max_threads);
        };
        metal::encode(stream(), launch, {x_rows, weight}, outputs);
        return;
    }
    const auto [y_rows, y_stride] = metal::rows_of(y, stream());
    const auto launch = [&, x_stride = x_stride, y_stride = y_stride](int max_threads) {
        return add_rms_norm_launch(M, D, eps_, x_stride, y_stride, format, max_threads);
    };
    metal::encode(stream(), launch, {x_rows, y_rows, weight}, outputs);
}

}  // namespace tiny_llm_ext
