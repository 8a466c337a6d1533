#include "common/checks.h"
#include "src/matmul/matmul_encoder.h"
#include "src/matmul/matmul_variants.h"

namespace tiny_llm_ext::metal {

bool is_aligned(const mx::array& x) { return x.offset() % 16 == 0; }

mx::array aligned(const mx::array& x, const mx::Stream& stream) {
    if (is_aligned(x)) {
        return x;
    }
    const mx::array moved = temporary(x.shape(), x.dtype(), stream);
    copy(x, moved, stream);
    return moved;
}

void encode_split_k(const mx::Stream& stream,
                    const std::function<MetalLaunch(int max_threads)>& launch,
                    const std::vector<mx::array>& inputs, mx::array& out) {
    const auto parts = static_cast<int>(launch(MAX_THREADS).groups.z);
    if (parts == 1) {
        encode(stream, launch, inputs, {out});
        return;
    }
    mx::Shape shape = out.shape();
    shape.insert(shape.begin(), parts);
    const mx::array sums = temporary(shape, mx::float32, stream);
    encode(stream, launch, inputs, {sums});
    const auto sum = [&](int max_threads) {
        return split_k_sum_launch(parts, static_cast<int64_t>(out.size()), format_of(out.dtype()),
                                  max_threads);
    };
    encode(stream, sum, {sums}, {out});
}

}  // namespace tiny_llm_ext::metal
