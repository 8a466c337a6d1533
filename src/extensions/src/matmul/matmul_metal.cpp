// matmul on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/rows.h"
#include "src/matmul/matmul.h"
#include "src/matmul/matmul_encoder.h"
#include "src/matmul/matmul_launch.h"

namespace tiny_llm_ext {

void Matmul::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate(out);
    if (out.size() == 0) {
        return;
    }
    const auto [a, a_stride] = metal::rows_of(inputs[0], stream());
    const auto [b, b_stride] = metal::rows_of(inputs[1], stream());
    const int64_t O = inputs[1].shape(0);
    const MatmulShape shape = {.M = static_cast<int64_t>(out.size()) / O,
                               .O = O,
                               .I = inputs[1].shape(1),
                               .a_stride = a_stride,
                               .b_stride = b_stride,
                               .aligned = metal::is_aligned(a) && metal::is_aligned(b),
                               .format = format_of(out.dtype())};
    const auto variant = choose_matmul_variant(shape.M, shape.O, shape.I);
    const auto launch = [&](int max_threads) { return matmul_launch(shape, variant, max_threads); };
    metal::encode_split_k(stream(), launch, {a, b}, out);
}

}  // namespace tiny_llm_ext
