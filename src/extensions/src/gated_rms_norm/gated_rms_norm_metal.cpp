// gated_rms_norm on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/gated_rms_norm/gated_rms_norm.h"
#include "src/gated_rms_norm/gated_rms_norm_launch.h"

namespace tiny_llm_ext {

void GatedRmsNorm::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_or_reuse(out, inputs[1]);
    if (out.size() == 0) {
        return;
    }
    const auto [o, o_stride] = metal::rows_of(inputs[0], stream());
    const auto [z, z_stride] = metal::rows_of(inputs[1], stream());
    const auto weight = metal::row_contiguous(inputs[2], stream());
    const GatedRmsNormParams params = {
        .D = out.shape(-1),
        .eps = eps_,
        .M = static_cast<long>(out.size()) / out.shape(-1),
        .o_stride = static_cast<long>(o_stride),
        .z_stride = static_cast<long>(z_stride),
    };
    const auto launch = [&](int max_threads) {
        return gated_rms_norm_launch(params, format_of(out.dtype()), format_of(weight.dtype()),
                                     max_threads);
    };
    metal::encode(stream(), launch, {o, z, weight}, {out});
}

}  // namespace tiny_llm_ext
