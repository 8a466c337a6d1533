// Vectorized swiglu: the reference, LANES elements at a time.
#include "common/row_simd.h"

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

// Computes a row of I elements.
template <Format F>
void swiglu_row(const void* gate, const void* up, void* out, int64_t I) {
    // [task 4.5.4 row]
    int64_t i = 0;
    for (; i + LANES <= I; i += LANES) {
        store(out, i, F, silu<F>(load(gate, i, F)) * load(up, i, F));
    }
    if (const int rest = static_cast<int>(I - i); rest > 0) {
        store(out, i, F, silu<F>(load(gate, i, F, rest)) * load(up, i, F, rest), rest);
    }
    // [/task 4.5.4 row]
}

}  // namespace

void swiglu(const RowJob& job, int64_t first, int64_t last) {
    if (job.options.activation == Activation::swigluoai) {
        return map_vectors(job, first, last, [](Floats gate, Floats up) {
            const Floats limit = splat(SWIGLU_LIMIT);
            gate = gate > limit ? limit : gate;  // a NaN is not clamped
            up = up > limit ? limit : up < -limit ? -limit : up;
            return gate * sigmoid(SWIGLU_ALPHA * gate) * (up + 1.0f);
        });
    }
    if (job.options.activation == Activation::gelu_tanh) {
        return map_vectors(job, first, last, [&](Floats gate, Floats up) {
            return round_to(gelu_tanh(gate), job.format) * up;
        });
    }
    with_format(job.format, [&]<Format F>() {
        for (int64_t m = first; m < last; m++) {
            swiglu_row<F>(input_row(job, 0, m), input_row(job, 1, m), output_row(job, 0, m), job.D);
        }
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
