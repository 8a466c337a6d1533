// Vectorized qk_norm_rope: the reference, LANES pairs at a time.
#include "common/row_simd.h"
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"
#include "src/rms_norm/fast/rms_norm_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// `count` ≤ LANES elements of a head from element i on: round(round(x · factor) · weight), or x if
// there is no weight. F: format of x. W: format of weight, to which the inner round() rounds.
template <Format F, Format W>
inline Floats normalized(const void* x, const void* weight, Floats factor, int64_t i, int count) {
    // [task 4.5.3 norm]
    const Floats values = load_up_to(x, i, F, count);
    if (weight == nullptr) {
        return values;
    }
    return round_to(round_to(values * factor, W) * load_up_to(weight, i, W, count), F);
    // [/task 4.5.3 norm]
}

// Normalizes and rotates `count` ≤ LANES pairs of a head from pair i on. A pair is elements i and
// i + pairs.
template <Format F, Format W>
inline void rotate_pairs(const QkNormRopeHead& head, const void* weight, Floats factor,
                         int64_t pairs, int64_t i, int count) {
    // [task 4.5.3 pairs]
    const Floats n1 = normalized<F, W>(head.x, weight, factor, i, count);
    const Floats n2 = normalized<F, W>(head.x, weight, factor, i + pairs, count);
    const Floats c = load_up_to(head.cos, i, Format::float32, count);
    const Floats s = load_up_to(head.sin, i, Format::float32, count);
    store(head.out, i, F, n1 * c - n2 * s, count);
    store(head.out, i + pairs, F, n1 * s + n2 * c, count);
    // [/task 4.5.3 pairs]
}

// Normalizes and rotates the `pairs` pairs of a head.
template <Format F, Format W>
inline void rotate_head(const QkNormRopeHead& head, const void* weight, Floats factor,
                        int64_t pairs) {
    // [task 4.5.3 head]
    int64_t i = 0;
    for (; i + LANES <= pairs; i += LANES) {
        rotate_pairs<F, W>(head, weight, factor, pairs, i, LANES);
    }
    if (i < pairs) {
        rotate_pairs<F, W>(head, weight, factor, pairs, i, static_cast<int>(pairs - i));
    }
    // [/task 4.5.3 head]
}

template <Format F, Format W>
void rotate_tokens(const QkNormRopeJob& job, int64_t first, int64_t last) {
    const int64_t D = job.sizes.D, rotated = 2 * job.sizes.W;
    for (int64_t token = first; token < last; token++) {
        for (int64_t h = 0; h < job.sizes.H; h++) {
            const QkNormRopeHead head = head_of(job, token, h);
            const Floats factor =
                splat(job.weight ? rms_norm_factor<F>(head.x, D, job.sizes.eps) : 1);
            rotate_head<F, W>(head, job.weight, factor, rotated / 2);
            for_vectors(D - rotated, [&](int64_t i, int count) {
                const int64_t at = rotated + i;
                store(head.out, at, F, normalized<F, W>(head.x, job.weight, factor, at, count),
                      count);
            });
        }
    }
}

}  // namespace

void qk_norm_rope(const QkNormRopeJob& job, int64_t first, int64_t last) {
    with_format(job.format, [&]<Format F>() {
        const auto rotate =
            job.weight_format == F ? rotate_tokens<F, F> : rotate_tokens<F, Format::float32>;
        rotate(job, first, last);
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
