// Vectorized qk_norm_rope: the reference, LANES pairs at a time.
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"
#include "src/rms_norm/fast/rms_norm_vectors.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Normalizes and rotates `count` ≤ LANES pairs from pair i on. x, out: indices of the head's first
// element.
template <Format F>
inline void rotate_pairs(const QkNormRopeJob& job, int64_t x, Floats factor, const float* cos,
                         const float* sin, int64_t out, int64_t i, int count) {
    // [task 4.5.3 pairs]
    auto read = [&](const void* array, int64_t at, Format format) {
        return count == LANES ? load(array, at, format) : load(array, at, format, count);
    };
    auto normalized = [&](int64_t at) {
        if (job.weight == nullptr) {
            return read(job.x, x + at, F);
        }
        return round_to(round_to(read(job.x, x + at, F) * factor, F) * read(job.weight, at, F), F);
    };
    const int64_t half = job.D / 2;
    const Floats n1 = normalized(i), n2 = normalized(i + half);
    const Floats c = read(cos, i, Format::float32), s = read(sin, i, Format::float32);
    store(job.out, out + i, F, n1 * c - n2 * s, count);
    store(job.out, out + i + half, F, n1 * s + n2 * c, count);
    // [/task 4.5.3 pairs]
}

// Computes one head, whose first element is element x of job.x and element `out` of job.out. cos
// and sin have D/2 elements.
template <Format F>
void rotate_head(const QkNormRopeJob& job, int64_t x, const float* cos, const float* sin,
                 int64_t out) {
    // [task 4.5.3 head]
    const int64_t half = job.D / 2;
    const float norm = job.weight ? rms_norm_factor<F>(job.x, x, job.D, job.eps) : 1;
    const Floats factor = splat(norm);
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        rotate_pairs<F>(job, x, factor, cos, sin, out, i, LANES);
    }
    if (i < half) {
        rotate_pairs<F>(job, x, factor, cos, sin, out, i, static_cast<int>(half - i));
    }
    // [/task 4.5.3 head]
}

// Computes one head with W < D/2: rotates the first 2·W elements; the others are only normalized.
template <Format F>
void rotate_part(const QkNormRopeJob& job, int64_t x, const float* cos, const float* sin,
                 int64_t out) {
    const float norm = job.weight ? rms_norm_factor<F>(job.x, x, job.D, job.eps) : 1;
    const auto normalized = [&](int64_t i, int count) {
        const Floats value = load_up_to(job.x, x + i, F, count);
        if (job.weight == nullptr) {
            return value;
        }
        return round_to(round_to(value * norm, F) * load_up_to(job.weight, i, F, count), F);
    };
    for_vectors(job.W, [&](int64_t i, int count) {
        const Floats n1 = normalized(i, count), n2 = normalized(i + job.W, count);
        const Floats c = load_up_to(cos, i, Format::float32, count);
        const Floats s = load_up_to(sin, i, Format::float32, count);
        store(job.out, out + i, F, n1 * c - n2 * s, count);
        store(job.out, out + i + job.W, F, n1 * s + n2 * c, count);
    });
    const int64_t rotated = 2 * job.W;
    for_vectors(job.D - rotated, [&](int64_t i, int count) {
        store(job.out, out + rotated + i, F, normalized(rotated + i, count), count);
    });
}

template <Format F>
void rotate_tokens(const QkNormRopeJob& job, int64_t first, int64_t last) {
    for (int64_t token = first; token < last; token++) {
        const int64_t b = token / job.L, l = token % job.L;
        const int64_t angles = b * job.angle_stride + l * job.W;
        for (int64_t h = 0; h < job.H; h++) {
            const int64_t x = b * job.x_strides[0] + l * job.x_strides[1] + h * job.x_strides[2];
            const auto rotate = 2 * job.W == job.D ? rotate_head<F> : rotate_part<F>;
            rotate(job, x, job.cos + angles, job.sin + angles,
                   ((b * job.H + h) * job.L + l) * job.D);
        }
    }
}

}  // namespace

void qk_norm_rope(const QkNormRopeJob& job, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return rotate_tokens<Format::float32>(job, first, last);
        case Format::float16:
            return rotate_tokens<Format::float16>(job, first, last);
        default:
            return rotate_tokens<Format::bfloat16>(job, first, last);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
