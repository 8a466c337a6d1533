// causal_conv1d on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/causal_conv1d/causal_conv1d.h"
#include "src/causal_conv1d/causal_conv1d_launch.h"

namespace tiny_llm_ext {

void CausalConv1d::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    auto& states = outputs[0];
    const auto& weight = inputs[2];
    metal::update(inputs[0], states, overwrite_, stream());
    allocate(outputs[1]);
    const auto [x, x_stride] = metal::rows_of(inputs[1], stream());
    const auto cu_seqlens = metal::row_contiguous(inputs[3], stream());
    const auto read_slots = metal::row_contiguous(inputs[4], stream());
    const auto write_slots = metal::row_contiguous(inputs[5], stream());
    const CausalConv1dParams params = {
        .T = x.shape(0),
        .B = read_slots.shape(0),
        .S = states.shape(0),
        .C = x.shape(1),
        .K = weight.shape(1),
        .x_stride = static_cast<long>(x_stride),
        .weight_strides = {static_cast<long>(weight.strides(0)),
                           static_cast<long>(weight.strides(1))},
    };
    if (outputs[1].size() == 0 || params.B == 0) {
        return;
    }
    const auto launch = [&](int max_threads) {
        return causal_conv1d_launch(params, format_of(x.dtype()), format_of(weight.dtype()),
                                    max_threads);
    };
    metal::encode(stream(), launch, {x, weight, cu_seqlens, read_slots, write_slots},
                  {states, outputs[1]});
}

}  // namespace tiny_llm_ext
