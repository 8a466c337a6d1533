// sigmoid_gate on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/sigmoid_gate/sigmoid_gate.h"
#include "src/sigmoid_gate/sigmoid_gate_launch.h"

namespace tiny_llm_ext {

void SigmoidGate::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const auto [x, x_stride] = metal::rows_of(inputs[0], stream());
    const auto [gate, gate_stride] = metal::rows_of(inputs[1], stream());
    const SigmoidGateParams params = {
        .D = out.shape(-1),
        .x_stride = static_cast<long>(x_stride),
        .gate_stride = static_cast<long>(gate_stride),
        .gate_step = inputs[1].shape(-1) == 1 ? 0 : 1,
    };
    const auto launch = [&](int max_threads) {
        const auto M = static_cast<int64_t>(out.size()) / params.D;
        return sigmoid_gate_launch(M, params, format_of(out.dtype()), max_threads);
    };
    metal::encode(stream(), launch, {x, gate}, {out});
}

}  // namespace tiny_llm_ext
