// weighted_sum on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/weighted_sum/weighted_sum.h"
#include "src/weighted_sum/weighted_sum_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void weighted_sum(const WeightedSumJob& job, int64_t first, int64_t last);)

void WeightedSum::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const mx::array x = row_contiguous(inputs[0], stream());
    const mx::array weights = row_contiguous(inputs[1], stream());
    const bool has_base = inputs.size() > 2;
    const mx::array base = has_base ? row_contiguous(inputs[2], stream()) : x;
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const WeightedSumJob job = {
        .N = static_cast<int64_t>(out.size()) / out.shape(-1),
        .K = x.shape(-2),
        .E = x.shape(-1),
        .format = format_of(x.dtype()),
        .x = x.data<char>(),
        .weights = weights.data<float>(),
        .base = has_base ? base.data<char>() : nullptr,
        .out = memory,
    };
    const auto kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), weighted_sum, weighted_sum_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.N, job.K * job.E,
                 [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
