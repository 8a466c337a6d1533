// qk_norm_rope on the CPU: the readable reference, and who runs which kernel.
#include <cmath>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void qk_norm_rope(const QkNormRopeJob& job, int64_t first, int64_t last);)

namespace {

// One head: x and out are the first elements of D.
void turn_head(const QkNormRopeJob& job, int64_t x, const float* cos, const float* sin,
               int64_t out) {
    const int64_t half = job.D / 2;
    const Format format = job.format;
    float squares = 0;
    for (int64_t i = 0; i < job.D; i++) {
        const float value = load_element(job.x, x + i, format);
        squares += value * value;
    }
    const float factor = 1 / std::sqrt(squares / static_cast<float>(job.D) + job.eps);
    auto normalized = [&](int64_t i) {
        const float value = round_to(load_element(job.x, x + i, format) * factor, format);
        return round_to(value * load_element(job.weight, i, format), format);
    };
    for (int64_t i = 0; i < half; i++) {
        const float n1 = normalized(i), n2 = normalized(i + half);
        store_element(job.out, out + i, format, n1 * cos[i] - n2 * sin[i]);
        store_element(job.out, out + i + half, format, n1 * sin[i] + n2 * cos[i]);
    }
}

}  // namespace

void qk_norm_rope_portable(const QkNormRopeJob& job, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) {
        const int64_t b = token / job.L, l = token % job.L;
        const int64_t angles = b * job.angle_stride + l * (job.D / 2);
        for (int64_t h = 0; h < job.H; h++) {
            const int64_t x = b * job.x_strides[0] + l * job.x_strides[1] + h * job.x_strides[2];
            turn_head(job, x, job.cos + angles, job.sin + angles,
                      ((b * job.H + h) * job.L + l) * job.D);
        }
    }
}

void QkNormRope::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const bool heads_are_rows = inputs[0].strides(3) == 1;
    const mx::array x = heads_are_rows ? inputs[0] : row_contiguous(inputs[0], stream());
    const mx::array cos = row_contiguous(inputs[2], stream());
    const mx::array sin = row_contiguous(inputs[3], stream());
    const int64_t L = x.shape(1), D = x.shape(3);
    const QkNormRopeJob job = {
        .B = x.shape(0),
        .L = L,
        .H = x.shape(2),
        .D = D,
        .eps = eps_,
        .format = format_of(x.dtype()),
        .x = x.data<char>(),
        .weight = row_contiguous(inputs[1], stream()).data<char>(),
        .cos = cos.data<float>(),
        .sin = sin.data<float>(),
        .out = memory,
        .x_strides = {x.strides(0), x.strides(1), x.strides(2)},
        .angle_stride = cos.shape(0) == 1 ? 0 : L * D / 2,
    };
    const auto kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), qk_norm_rope, qk_norm_rope_portable);
    add_task(stream(), [job, kernel] {
        for_rows(job.B * job.L, job.H * job.D,
                 [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
