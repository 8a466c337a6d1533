// qk_norm_rope: scalar reference kernel.
#include <cmath>

#include "src/qk_norm_rope/qk_norm_rope_kernels.h"

namespace tiny_llm_ext {

namespace {

void rotate_head(const QkNormRopeJob& job, const QkNormRopeHead& head) {
    const Format format = job.format;
    const int64_t D = job.sizes.D, W = job.sizes.W;
    float squares = 0;
    for (int64_t i = 0; i < D; i++) {
        const float value = load_element(head.x, i, format);
        squares += value * value;
    }
    const float factor = 1 / std::sqrt(squares / static_cast<float>(D) + job.sizes.eps);
    auto normalized = [&](int64_t i) {
        const float x = load_element(head.x, i, format);
        if (job.weight == nullptr) {
            return x;
        }
        const float weight = load_element(job.weight, i, job.weight_format);
        return round_to(round_to(x * factor, job.weight_format) * weight, format);
    };
    for (int64_t i = 0; i < W; i++) {
        const float n1 = normalized(i), n2 = normalized(i + W);
        store_element(head.out, i, format, n1 * head.cos[i] - n2 * head.sin[i]);
        store_element(head.out, i + W, format, n1 * head.sin[i] + n2 * head.cos[i]);
    }
    for (int64_t i = 2 * W; i < D; i++) {
        store_element(head.out, i, format, normalized(i));
    }
}

}  // namespace

void qk_norm_rope_reference(const QkNormRopeJob& job, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) {
        for (int64_t h = 0; h < job.sizes.H; h++) {
            rotate_head(job, head_of(job, token, h));
        }
    }
}

}  // namespace tiny_llm_ext
