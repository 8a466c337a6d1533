// quantized_matmul on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/matmul/matmul_encoder.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_launch.h"

namespace tiny_llm_ext {

void QuantizedMatmul::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate(out);
    if (out.size() == 0) {
        return;
    }
    std::vector<mx::array> aligned_inputs;
    for (const auto& input : inputs) {
        aligned_inputs.push_back(metal::aligned(metal::row_contiguous(input, stream()), stream()));
    }
    const int64_t O = inputs[3].shape(0);
    const QuantizedMatmulShape shape = {.M = static_cast<int64_t>(out.size()) / O,
                                        .O = O,
                                        .I = inputs[2].shape(-1),
                                        .group_size = group_size_,
                                        .bits = bits_,
                                        .format = format_of(out.dtype()),
                                        .scale_format = format_of(inputs[0].dtype())};
    auto variant = MatmulVariant::readable;
    // [solution only]
    variant = choose_quantized_matmul_variant(shape);
    // [/solution only]
    const auto launch = [&](int max_threads) {
        return quantized_matmul_launch(shape, variant, max_threads);
    };
    metal::encode_split_k(stream(), launch, aligned_inputs, out);
}

}  // namespace tiny_llm_ext
