// swiglu on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/swiglu/swiglu.h"
#include "src/swiglu/swiglu_launch.h"

namespace tiny_llm_ext {

void Swiglu::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const int I = out.shape(-1);
    const auto M = static_cast<int64_t>(out.size()) / I;
    const auto [gate, gate_stride] = metal::rows_of(inputs[0], stream());
    const auto [up, up_stride] = metal::rows_of(inputs[1], stream());
    const auto launch = [&, gate_stride = gate_stride, up_stride = up_stride](int max_threads) {
        return swiglu_launch(M, I, gate_stride, up_stride, format_of(out.dtype()), max_threads);
    };
    metal::encode(stream(), launch, {gate, up}, {out});
}

}  // namespace tiny_llm_ext
