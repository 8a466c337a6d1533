// add_bias: scalar reference kernel.
#include "src/add_bias/add_bias_kernels.h"

namespace tiny_llm_ext {

void add_bias_reference(const AddBiasJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        for (int64_t i = 0; i < job.O; i++) {
            const float x = load_element(job.x, m * job.x_stride + i, job.format);
            const float bias = load_element(job.bias, i, job.format);
            store_element(job.out, m * job.O + i, job.format, x + bias);
        }
    }
}

}  // namespace tiny_llm_ext
