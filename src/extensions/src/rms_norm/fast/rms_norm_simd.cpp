// Vectorized rms_norm: each row is summed with y, reduced and scaled while it is in the L1 cache.
#include "src/rms_norm/fast/rms_norm_vectors.h"
#include "src/rms_norm/rms_norm_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// sum = x + y, rounded to the format, for D elements from x_start, y_start and start on.
template <Format F>
void add_row(const void* x, int64_t x_start, const void* y, int64_t y_start, void* sum,
             int64_t start, int64_t D) {
    // [task 4.5.2 add]
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) {
        store(sum, start + i, F, load(x, x_start + i, F) + load(y, y_start + i, F));
    }
    if (const int rest = static_cast<int>(D - i); rest > 0) {
        store(sum, start + i, F, load(x, x_start + i, F, rest) + load(y, y_start + i, F, rest),
              rest);
    }
    // [/task 4.5.2 add]
}

// Stores round(x · factor) · weight from element `start` of job.out on, for D elements of x from
// x_start on.
template <Format F>
void norm_row(const void* x, int64_t x_start, const RmsNormJob& job, int64_t start) {
    // [task 4.5.2 norm]
    const Floats factor = splat(rms_norm_factor<F>(x, x_start, job.D, job.eps));
    int64_t i = 0;
    for (; i + LANES <= job.D; i += LANES) {
        const Floats y = round_to(load(x, x_start + i, F) * factor, F) * load(job.weight, i, F);
        store(job.out, start + i, F, y);
    }
    if (const int rest = static_cast<int>(job.D - i); rest > 0) {
        const Floats y = round_to(load(x, x_start + i, F, rest) * factor, F);
        store(job.out, start + i, F, y * load(job.weight, i, F, rest), rest);
    }
    // [/task 4.5.2 norm]
}

template <Format F>
void norm_rows(const RmsNormJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        if (job.y == nullptr) {
            norm_row<F>(job.x, m * job.x_stride, job, m * job.D);
        } else {
            add_row<F>(job.x, m * job.x_stride, job.y, m * job.y_stride, job.sum, m * job.D, job.D);
            norm_row<F>(job.sum, m * job.D, job, m * job.D);
        }
    }
}

}  // namespace

void rms_norm(const RmsNormJob& job, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return norm_rows<Format::float32>(job, first, last);
        case Format::float16:
            return norm_rows<Format::float16>(job, first, last);
        default:
            return norm_rows<Format::bfloat16>(job, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
