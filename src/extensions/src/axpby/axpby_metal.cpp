// axpby on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/axpby/axpby.h"
#include "src/axpby/axpby_launch.h"

namespace tiny_llm_ext {

void Axpby::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate(out);
    if (out.size() == 0) {
        return;
    }
    const auto launch = [&](int max_threads) {
        return axpby_launch(static_cast<int64_t>(out.size()), alpha_, beta_, format_of(out.dtype()),
                            max_threads);
    };
    metal::encode(stream(), launch, inputs, {out});
}

}  // namespace tiny_llm_ext
