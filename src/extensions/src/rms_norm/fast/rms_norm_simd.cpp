// Vectorized rms_norm: each row is summed with y, reduced and scaled while it is in the L1 cache.
#include "common/row_simd.h"
#include "src/rms_norm/fast/rms_norm_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// sum = x + y, rounded to the format, for D elements.
template <Format F>
void add_row(const void* x, const void* y, void* sum, int64_t D) {
    // [task 4.5.2 add]
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) {
        store(sum, i, F, load(x, i, F) + load(y, i, F));
    }
    if (const int rest = static_cast<int>(D - i); rest > 0) {
        store(sum, i, F, load(x, i, F, rest) + load(y, i, F, rest), rest);
    }
    // [/task 4.5.2 add]
}

// out = round(x · factor) · weight, for D elements. F: format of x and out. W: format of weight, to
// which round() rounds.
template <Format F, Format W>
void norm_row(const void* x, const void* weight, float eps, void* out, int64_t D) {
    // [task 4.5.2 norm]
    const Floats factor = splat(rms_norm_factor<F>(x, D, eps));
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) {
        store(out, i, F, round_to(load(x, i, F) * factor, W) * load(weight, i, W));
    }
    if (const int rest = static_cast<int>(D - i); rest > 0) {
        const Floats y = round_to(load(x, i, F, rest) * factor, W);
        store(out, i, F, y * load(weight, i, W, rest), rest);
    }
    // [/task 4.5.2 norm]
}

template <Format F, Format W>
void norm_rows(const RowJob& job, const void* weight, int64_t first, int64_t last) {
    const bool adds = job.outputs[1].data != nullptr;
    for (int64_t m = first; m < last; m++) {
        const void* x = input_row(job, 0, m);
        if (adds) {
            add_row<F>(x, input_row(job, 1, m), output_row(job, 0, m), job.D);
            x = output_row(job, 0, m);
        }
        norm_row<F, W>(x, weight, job.options.eps, output_row(job, adds, m), job.D);
    }
}

}  // namespace

void rms_norm(const RowJob& job, int64_t first, int64_t last) {
    const RowArray& weight = job.inputs[job.outputs[1].data == nullptr ? 1 : 2];
    with_format(job.format, [&]<Format F>() {
        const auto rows = weight.format == F ? norm_rows<F, F> : norm_rows<F, Format::float32>;
        rows(job, weight.data, first, last);
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
