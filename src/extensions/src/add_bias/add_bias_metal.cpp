// add_bias on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/add_bias/add_bias.h"
#include "src/add_bias/add_bias_launch.h"

namespace tiny_llm_ext {

void AddBias::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const int O = out.shape(-1);
    const auto M = static_cast<int64_t>(out.size()) / O;
    const auto [x, x_stride] = metal::rows_of(inputs[0], stream());
    const auto bias = metal::row_contiguous(inputs[1], stream());
    const auto launch = [&, x_stride = x_stride](int max_threads) {
        return add_bias_launch(M, O, x_stride, format_of(out.dtype()), max_threads);
    };
    metal::encode(stream(), launch, {x, bias}, {out});
}

}  // namespace tiny_llm_ext
