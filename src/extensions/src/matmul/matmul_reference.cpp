// matmul: scalar reference kernel.
#include "src/matmul/matmul_kernels.h"

namespace tiny_llm_ext {

void matmul_reference(const MatmulJob& job, const MatmulTile& tile) {
    for (int64_t o = tile.first_output; o < tile.last_output; o++) {
        for (int64_t m = tile.first_row; m < tile.last_row; m++) {
            float total = 0;
            for (int64_t i = 0; i < job.I; i++) {
                total += load_element(job.a, m * job.a_stride + i, job.format) *
                         load_element(job.b, o * job.b_stride + i, job.format);
            }
            store_element(job.out, m * job.O + o, job.format, total);
        }
    }
}

}  // namespace tiny_llm_ext
