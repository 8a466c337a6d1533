// weighted_sum: scalar reference kernel.
#include "src/weighted_sum/weighted_sum_kernels.h"

namespace tiny_llm_ext {

void weighted_sum_reference(const WeightedSumJob& job, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++) {
        for (int64_t e = 0; e < job.E; e++) {
            const int64_t offset = n * job.E + e;
            float sum = job.base ? load_element(job.base, offset, job.format) : 0;
            for (int64_t k = 0; k < job.K; k++) {
                const float x = load_element(job.x, (n * job.K + k) * job.E + e, job.format);
                const float product = job.weights[n * job.K + k] * x;
                sum += product;
            }
            store_element(job.out, offset, job.format, sum);
        }
    }
}

}  // namespace tiny_llm_ext
