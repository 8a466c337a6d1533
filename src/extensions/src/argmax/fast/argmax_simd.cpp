// Vectorized argmax: each lane tracks its maximum and the index of the maximum; lanes are reduced
// after the last element.
#include "common/simd.h"
#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

template <Format F>
ArgmaxResult argmax_part(const ArgmaxJob& job, int64_t row, int64_t first, int64_t last) {
    const int64_t x = row * job.stride;
    Floats best = splat(-__builtin_inff());
    Ints at = lane_indices() + static_cast<int32_t>(first);  // index of `best`
    Ints current = at;
    int64_t i = first;
    for (; i + LANES <= last; i += LANES, current += LANES) {
        const Floats value = load(job.x, x + i, F);
        const Ints larger = value > best;
        best = larger ? value : best;
        at = larger ? current : at;
    }
    ArgmaxResult largest = {best[0], at[0]};
    for (int lane = 1; lane < LANES; lane++) {
        const ArgmaxResult other = {best[lane], at[lane]};
        largest = other.beats(largest) ? other : largest;
    }
    for (; i < last; i++) {
        const float value = load_element(job.x, x + i, F);
        largest = value > largest.value ? ArgmaxResult{value, static_cast<int32_t>(i)} : largest;
    }
    return largest;
}

}  // namespace

ArgmaxResult argmax(const ArgmaxJob& job, int64_t row, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return argmax_part<Format::float32>(job, row, first, last);
        case Format::float16:
            return argmax_part<Format::float16>(job, row, first, last);
        default:
            return argmax_part<Format::bfloat16>(job, row, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
