// paged_attention: readable reference; flash_attention's with keys located through the block table.
#include "src/flash_attention/attention_reference.h"
#include "src/paged_attention/paged_attention_kernels.h"

namespace tiny_llm_ext {

void paged_attention_reference(const PagedAttentionJob& job, const PagedSequence& sequence,
                               int64_t h, int64_t first_row, int rows, const PagedSequence*,
                               float*) {
    // [task 3.2.2 rows]
    const int64_t group = job.H_q / job.H;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const int64_t head = h * group + row % group, l = row / group;
        const int64_t query = query_offset(job, sequence, head, l);
        const auto key_or_value = [&](int64_t j) { return key_offset(job, sequence, h, j); };
        const auto score = [&](int64_t j) {
            return dot(job.query, query, job.key_pages, key_or_value(j), job.D, job.format) *
                   job.scale;
        };
        attend_row(visible_keys(job, sequence, l), job.D, job.format, score, job.value_pages,
                   key_or_value, job.out, out_offset(job, sequence, head, l));
    }
    // [/task 3.2.2 rows]
}

}  // namespace tiny_llm_ext
