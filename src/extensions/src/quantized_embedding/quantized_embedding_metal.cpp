// quantized_embedding on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/quantized_embedding/quantized_embedding.h"
#include "src/quantized_embedding/quantized_embedding_launch.h"

namespace tiny_llm_ext {

void QuantizedEmbedding::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate(out);
    if (out.size() == 0) {
        return;
    }
    std::vector<mx::array> contiguous_inputs;
    for (const auto& input : inputs) {
        contiguous_inputs.push_back(metal::row_contiguous(input, stream()));
    }
    const auto launch = [&](int max_threads) {
        return quantized_embedding_launch(
            static_cast<int64_t>(inputs[0].size()), inputs[3].shape(0), out.shape(-1), group_size_,
            bits_, inputs[0].dtype() == mx::int32, format_of(out.dtype()), max_threads);
    };
    metal::encode(stream(), launch, contiguous_inputs, {out});
}

}  // namespace tiny_llm_ext
