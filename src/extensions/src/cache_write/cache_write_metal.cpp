// cache_write on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/cache_write/cache_write.h"
#include "src/cache_write/cache_write_launch.h"

namespace tiny_llm_ext {

void CacheWrite::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& buffer = inputs[0];
    const auto& tokens = inputs[1];
    metal::update(buffer, out, overwrite_, stream());
    if (tokens.size() == 0) {
        return;
    }
    const CacheWriteParams params = {
        .H = buffer.shape(1),
        .C = buffer.shape(2),
        .L = tokens.shape(2),
        .D = buffer.shape(3),
        .token_strides = {static_cast<long>(tokens.strides(0)),
                          static_cast<long>(tokens.strides(1)),
                          static_cast<long>(tokens.strides(2)),
                          static_cast<long>(tokens.strides(3))},
    };
    const mx::array offsets = metal::row_contiguous(inputs[2], stream());
    const auto launch = [&](int max_threads) {
        return cache_write_launch(buffer.shape(0), params, static_cast<int>(out.itemsize()),
                                  max_threads);
    };
    metal::encode(stream(), launch, {tokens, offsets}, {out});
}

}  // namespace tiny_llm_ext
