// qk_norm_rope on the GPU: eval_gpu, which launches the Metal kernels.
#include <string>

#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/qk_norm_rope/qk_norm_rope.h"

namespace tiny_llm_ext {

void QkNormRope::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate(out);
    if (out.size() == 0) {
        return;
    }
    const bool heads_are_rows = inputs[0].strides(3) == 1;
    const auto x = heads_are_rows ? inputs[0] : metal::row_contiguous(inputs[0], stream());
    const auto weight = normalizes_ ? metal::row_contiguous(inputs[1], stream()) : x;
    const auto cos = metal::row_contiguous(inputs[2], stream());
    const auto sin = metal::row_contiguous(inputs[3], stream());
    const QkNormRopeParams params = params_of(x, cos);
    const std::string kernel =
        kernel_name("qk_norm_rope_head", format_of(x.dtype()), format_of(weight.dtype()));
    const auto launch = [&](int max_threads) {
        const int64_t heads = static_cast<int64_t>(params.B) * params.L * params.H;
        return simdgroup_launch(kernel, heads, max_threads, params);
    };
    metal::encode(stream(), launch, {x, weight, cos, sin}, {out});
}

}  // namespace tiny_llm_ext
