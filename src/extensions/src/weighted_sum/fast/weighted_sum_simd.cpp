// Vectorized weighted_sum: the reference, LANES elements at a time.
#include "common/simd.h"
#include "src/weighted_sum/weighted_sum_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Computes `count` ≤ LANES elements of row n, starting at element e.
inline Floats sum_of(const WeightedSumJob& job, int64_t n, int64_t e, int count) {
    Floats sum = {};
    if (job.base != nullptr) {
        sum = load_up_to(job.base, n * job.E + e, job.format, count);
    }
    for (int64_t k = 0; k < job.K; k++) {
        const int64_t offset = (n * job.K + k) * job.E + e;
        const Floats x = count == LANES ? load(job.x, offset, job.format)
                                        : load(job.x, offset, job.format, count);
        sum = sum + job.weights[n * job.K + k] * x;
    }
    return sum;
}

}  // namespace

void weighted_sum(const WeightedSumJob& job, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++) {
        int64_t e = 0;
        for (; e + LANES <= job.E; e += LANES) {
            store(job.out, n * job.E + e, job.format, sum_of(job, n, e, LANES));
        }
        if (const int rest = static_cast<int>(job.E - e); rest > 0) {
            store(job.out, n * job.E + e, job.format, sum_of(job, n, e, rest), rest);
        }
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
