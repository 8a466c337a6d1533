// qk_norm_rope: scalar reference kernel.
#include <cmath>

#include "src/qk_norm_rope/qk_norm_rope_kernels.h"

namespace tiny_llm_ext {

namespace {

// Computes one head, whose first element is element x of job.x and element `out` of job.out.
void rotate_head(const QkNormRopeJob& job, int64_t x, const float* cos, const float* sin,
                 int64_t out) {
    const Format format = job.format;
    float squares = 0;
    for (int64_t i = 0; i < job.D; i++) {
        const float value = load_element(job.x, x + i, format);
        squares += value * value;
    }
    const float factor = 1 / std::sqrt(squares / static_cast<float>(job.D) + job.eps);
    auto normalized = [&](int64_t i) {
        if (job.weight == nullptr) {
            return load_element(job.x, x + i, format);
        }
        const float value = round_to(load_element(job.x, x + i, format) * factor, format);
        return round_to(value * load_element(job.weight, i, format), format);
    };
    for (int64_t i = 0; i < job.W; i++) {
        const float n1 = normalized(i), n2 = normalized(i + job.W);
        store_element(job.out, out + i, format, n1 * cos[i] - n2 * sin[i]);
        store_element(job.out, out + i + job.W, format, n1 * sin[i] + n2 * cos[i]);
    }
    for (int64_t i = 2 * job.W; i < job.D; i++) {
        store_element(job.out, out + i, format, normalized(i));
    }
}

}  // namespace

void qk_norm_rope_reference(const QkNormRopeJob& job, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) {
        const int64_t b = token / job.L, l = token % job.L;
        const int64_t angles = b * job.angle_stride + l * job.W;
        for (int64_t h = 0; h < job.H; h++) {
            const int64_t x = b * job.x_strides[0] + l * job.x_strides[1] + h * job.x_strides[2];
            rotate_head(job, x, job.cos + angles, job.sin + angles,
                        ((b * job.H + h) * job.L + l) * job.D);
        }
    }
}

}  // namespace tiny_llm_ext
