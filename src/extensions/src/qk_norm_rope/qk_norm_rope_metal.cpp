// qk_norm_rope on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/qk_norm_rope/qk_norm_rope_launch.h"

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
    const int L = x.shape(1), W = cos.shape(2);
    const QkNormRopeParams params = {
        .B = x.shape(0),
        .L = L,
        .H = x.shape(2),
        .D = x.shape(3),
        .W = W,
        .eps = eps_,
        .x_strides = {static_cast<long>(x.strides(0)), static_cast<long>(x.strides(1)),
                      static_cast<long>(x.strides(2))},
        .angle_stride = cos.shape(0) == 1 ? 0 : static_cast<long>(L) * W,
        .normalizes = normalizes_,
    };
    const auto launch = [&](int max_threads) {
        return qk_norm_rope_launch(params, format_of(x.dtype()), max_threads);
    };
    metal::encode(stream(), launch, {x, weight, cos, sin}, {out});
}

}  // namespace tiny_llm_ext
