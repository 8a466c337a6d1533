// paged_cache_write on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/paged_cache_write/paged_cache_write.h"
#include "src/paged_cache_write/paged_cache_write_launch.h"

namespace tiny_llm_ext {

void PagedCacheWrite::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& tokens = inputs[1];
    metal::update(inputs[0], out, overwrite_, stream());
    if (tokens.size() == 0 || out.size() == 0) {
        return;
    }
    const auto slots = metal::row_contiguous(inputs[2], stream());
    PagedCacheWriteParams params = {
        .H = tokens.shape(1),
        .L = tokens.shape(2),
        .D = tokens.shape(3),
        .page_size = out.shape(2),
        .row_width = out.shape(3),
        .tokens = static_cast<long>(tokens.shape(0)) * tokens.shape(2),
        .num_slots = static_cast<long>(out.shape(0)) * out.shape(2),
        .token_strides = {},
    };
    for (int i = 0; i < 4; i++) {
        params.token_strides[i] = static_cast<long>(tokens.strides(i));
    }
    if (out.dtype() == mx::int8) {
        const auto format = format_of(tokens.dtype());
        metal::encode(stream(), paged_cache_write_int8_launch(params, format), {tokens, slots},
                      {out});
        return;
    }
    const auto launch = [&](int max_threads) {
        return paged_cache_write_launch(params, static_cast<int>(out.itemsize()), max_threads);
    };
    metal::encode(stream(), launch, {tokens, slots}, {out});
}

}  // namespace tiny_llm_ext
