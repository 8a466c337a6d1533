// Vectorized add_bias: the reference, LANES elements at a time.
#include "common/simd.h"
#include "src/add_bias/add_bias_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

template <Format F>
void add_bias_rows(const AddBiasJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        const int64_t x = m * job.x_stride, out = m * job.O;
        int64_t i = 0;
        for (; i + LANES <= job.O; i += LANES) {
            store(job.out, out + i, F, load(job.x, x + i, F) + load(job.bias, i, F));
        }
        if (const int rest = static_cast<int>(job.O - i); rest > 0) {
            const Floats sum = load(job.x, x + i, F, rest) + load(job.bias, i, F, rest);
            store(job.out, out + i, F, sum, rest);
        }
    }
}

}  // namespace

void add_bias(const AddBiasJob& job, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return add_bias_rows<Format::float32>(job, first, last);
        case Format::float16:
            return add_bias_rows<Format::float16>(job, first, last);
        default:
            return add_bias_rows<Format::bfloat16>(job, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
