// Vectorized argmax: each lane tracks its maximum and the index of the maximum; lanes are reduced
// after the last element.
#include "common/row_simd.h"
#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

template <Format F>
ArgmaxResult largest_of(const void* row, int64_t first, int64_t last) {
    Floats best = splat(-__builtin_inff());
    Ints at = lane_indices() + static_cast<int32_t>(first);  // index of `best`
    Ints current = at;
    int64_t i = first;
    for (; i + LANES <= last; i += LANES, current += LANES) {
        const Floats value = load(row, i, F);
        const Ints larger = value > best;
        best = larger ? value : best;
        at = larger ? current : at;
    }
    ArgmaxResult largest = {best[0], at[0]};
    for (int lane = 1; lane < LANES; lane++) {
        const ArgmaxResult other = {best[lane], at[lane]};
        largest = beats(other, largest) ? other : largest;
    }
    for (; i < last; i++) {
        const float value = load_element(row, i, F);
        largest = value > largest.value ? ArgmaxResult{value, static_cast<int32_t>(i)} : largest;
    }
    return largest;
}

}  // namespace

void argmax(const RowJob& job, int64_t first, int64_t last) {
    const void* row = input_row(job, 0, first / job.D);
    const int64_t begin = first % job.D;
    with_format(job.inputs[0].format, [&]<Format F>() {
        *static_cast<ArgmaxResult*>(job.outputs[0].data) =
            largest_of<F>(row, begin, begin + last - first);
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
