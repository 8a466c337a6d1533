// add_lora: scalar reference kernel.
#include "src/add_lora/add_lora_kernels.h"

namespace tiny_llm_ext {

void lora_shrink_reference(const AddLoraJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        const Ranks ranks = ranks_of(job, m);
        for (int64_t r = ranks.first; r < ranks.last; r++) {
            float sum = 0;
            for (int64_t i = 0; i < job.I; i++) {
                sum += load_element(job.x, m * job.x_stride + i, job.format) *
                       load_element(job.a, r * job.I + i, job.format);
            }
            job.h[m * job.R + r] = sum;
        }
    }
}

void lora_expand_reference(const AddLoraJob& job, const LoraTile& tile) {
    for (int64_t m = tile.first_row; m < tile.last_row; m++) {
        const Ranks ranks = ranks_of(job, m);
        for (int64_t o = tile.first_output; o < tile.last_output; o++) {
            float update = 0;
            for (int64_t r = ranks.first; r < ranks.last; r++) {
                update += job.h[m * job.R + r] * load_element(job.b, r * job.O + o, job.format);
            }
            const float y = load_element(job.y, m * job.y_stride + o, job.format);
            store_element(job.out, m * job.O + o, job.format, y + update);
        }
    }
}

}  // namespace tiny_llm_ext
