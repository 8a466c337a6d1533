// flash_attention: scalar reference kernel, one query row at a time.
#include <limits>

#include "src/flash_attention/attention_reference.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// query · key · scale + mask, for one row and one key.
float score(const FlashAttentionJob& job, int64_t b, int64_t head, int64_t l, int64_t s) {
    // [task 2.4.2 score]
    float added = 0;
    if (job.mask_kind != MaskKind::none) {
        added = mask_element(job, b, head, l, s);
        if (added == -INFINITE) {
            return -INFINITE;  // hidden, even if the score is NaN
        }
    }
    const int64_t query = row_offset(job.query_strides, b, head, l);
    const int64_t key = row_offset(job.key_strides, b, head / (job.H_q / job.H), s);
    return dot(job.query, query, job.key, key, job.D, job.format) * job.scale + added;
    // [/task 2.4.2 score]
}

// Computes one row of out.
void attend_row(const FlashAttentionJob& job, int64_t b, int64_t head, int64_t l) {
    const auto score_of = [&](int64_t s) { return score(job, b, head, l, s); };
    const auto value_of = [&](int64_t s) {
        return row_offset(job.value_strides, b, head / (job.H_q / job.H), s);
    };
    const float* sink = job.sinks == nullptr ? nullptr : job.sinks + head;
    attend_row(visible_keys(job, b, l), job.D, job.format, score_of, job.value, value_of, sink,
               job.out, out_offset(job, b, head, l));
}

}  // namespace

void flash_attention_reference(const FlashAttentionJob& job, int64_t b, int64_t h,
                               int64_t first_row, int rows, float*) {
    const int64_t group = job.H_q / job.H;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        attend_row(job, b, h * group + row % group, row / group);
    }
}

}  // namespace tiny_llm_ext
