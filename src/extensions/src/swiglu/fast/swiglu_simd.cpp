// Vectorized swiglu: the reference, LANES elements at a time.
#include "common/simd.h"
#include "src/swiglu/swiglu_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// round_to for values from 1 to 2, where the format's spacing is constant. Near `shift`, float32
// has the same spacing, so adding `shift` rounds to it.
template <Format F>
inline Floats round_1_to_2(Floats x) {
    if (F == Format::float32) {
        return x;
    }
    const float shift = F == Format::float16 ? 0x1.8p13f : 0x1.8p16f;
    return (x + shift) - shift;
}

// silu(x) = x · sigmoid(x), rounded to the format after the same steps as in the reference.
template <Format F>
inline Floats silu(Floats x) {
    // [task 4.5.4 silu]
    const Ints sign = Ints{} + INT32_MIN;
    const Floats z = round_to(exp_of_negative(as_floats(as_ints(x) | sign)), F);  // e^−|x|, 0 … 1
    const Floats sigmoid = round_to((x < 0.0f ? z : splat(1.0f)) / round_1_to_2<F>(1.0f + z), F);
    return round_to(x * sigmoid, F);
    // [/task 4.5.4 silu]
}

// Computes a row of I elements. gate, up, out: indices of its first element in each array.
template <Format F>
void swiglu_row(const SwigluJob& job, int64_t gate, int64_t up, int64_t out) {
    // [task 4.5.4 row]
    int64_t i = 0;
    for (; i + LANES <= job.I; i += LANES) {
        const Floats activated = silu<F>(load(job.gate, gate + i, F));
        store(job.out, out + i, F, activated * load(job.up, up + i, F));
    }
    if (const int rest = static_cast<int>(job.I - i); rest > 0) {
        const Floats activated = silu<F>(load(job.gate, gate + i, F, rest));
        store(job.out, out + i, F, activated * load(job.up, up + i, F, rest), rest);
    }
    // [/task 4.5.4 row]
}

template <Format F>
void swiglu_rows(const SwigluJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        swiglu_row<F>(job, m * job.gate_stride, m * job.up_stride, m * job.I);
    }
}

}  // namespace

void swiglu(const SwigluJob& job, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return swiglu_rows<Format::float32>(job, first, last);
        case Format::float16:
            return swiglu_rows<Format::float16>(job, first, last);
        default:
            return swiglu_rows<Format::bfloat16>(job, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
