// Fused elementwise vector kernels against their references, in float32 and both 16-bit formats,
// for row sizes with and without a partial vector.
#include <algorithm>
#include <cmath>

#include "common/row_job.h"
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"
#include "tests/kernel_tests.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_ROW_KERNELS(rms_norm)
TINY_LLM_DECLARE_ROW_KERNELS(swiglu)

namespace tests {

namespace {

constexpr Format FORMATS[] = {Format::float32, Format::float16, Format::bfloat16};
constexpr int64_t SIZES[] = {1, 3, 4, 7, 16, 31, 64, 131};
constexpr int64_t ROWS = 3;

// `count` random elements in the given format. The buffer has four bytes per element in every
// format, so that its type is the same for all formats.
std::vector<float> random_array(Random& random, int64_t count, Format format, float scale = 1) {
    std::vector<float> memory(count);
    for (int64_t i = 0; i < count; i++) {
        store_element(memory.data(), i, format, scale * random.number());
    }
    return memory;
}

RowArray rows(std::vector<float>& memory, int64_t D, Format format) {
    return {memory.data(), D, D, format};
}

// Whether a and b differ by at most a few ulps, a tolerance for the different summation orders of a
// kernel and its reference.
bool is_close(float a, float b, Format format) {
    const float epsilon = format == Format::float32   ? 0x1p-23f
                          : format == Format::float16 ? 0x1p-10f
                                                      : 0x1p-7f;
    return std::abs(a - b) <= 4 * epsilon * std::max(1.0f, std::abs(b));
}

void expect_close(const float* actual, const float* expected, int64_t count, Format format,
                  const char* what, int64_t size) {
    for (int64_t i = 0; i < count; i++) {
        const float a = load_element(actual, i, format), b = load_element(expected, i, format);
        expect(is_close(a, b, format), [&] {
            return std::string(what) + " of " + std::to_string(size) + ", element " +
                   std::to_string(i) + ": expected " + std::to_string(b) + ", got " +
                   std::to_string(a);
        });
    }
}

}  // namespace

KERNEL_TEST(add_rms_norm_matches_reference) {
    const auto kernel = TINY_LLM_CHOOSE_SIMD(set, rms_norm, rms_norm_reference);
    Random random(1);
    for (const Format format : FORMATS) {
        for (const Format weight_format : {format, Format::float32}) {
            for (const int64_t D : SIZES) {
                auto x = random_array(random, ROWS * D, format),
                     y = random_array(random, ROWS * D, format);
                auto weight = random_array(random, D, weight_format);
                std::vector<float> sums[2], outs[2];
                for (int variant = 0; variant < 2; variant++) {
                    sums[variant].resize(ROWS * D);
                    outs[variant].resize(ROWS * D);
                    const RowJob job = {
                        .M = ROWS,
                        .D = D,
                        .cost = D,
                        .format = format,
                        .options = {.eps = 1e-6f},
                        .inputs = {rows(x, D, format), rows(y, D, format),
                                   rows(weight, D, weight_format)},
                        .outputs = {rows(sums[variant], D, format), rows(outs[variant], D, format)},
                    };
                    (variant == 0 ? kernel : rms_norm_reference)(job, 0, ROWS);
                }
                expect_close(sums[0].data(), sums[1].data(), ROWS * D, format, "sum", D);
                expect_close(outs[0].data(), outs[1].data(), ROWS * D, format, "norm", D);
            }
        }
    }
}

KERNEL_TEST(qk_norm_rope_matches_reference) {
    const auto kernel = TINY_LLM_CHOOSE_SIMD(set, qk_norm_rope, qk_norm_rope_reference);
    Random random(2);
    constexpr int L = 2, H = 3;
    for (const Format format : FORMATS) {
        for (const int64_t W : SIZES) {
            const int D = static_cast<int>(2 * W + (W % 2 ? 0 : 6)), count = L * H * D;
            const Format weight_format = W % 3 ? format : Format::float32;
            const auto x = random_array(random, count, format),
                       weight = random_array(random, D, weight_format);
            const auto cos = random_array(random, L * W, Format::float32),
                       sin = random_array(random, L * W, Format::float32);
            std::vector<float> outs[2];
            for (int variant = 0; variant < 2; variant++) {
                outs[variant].resize(count);
                const QkNormRopeJob job = {
                    .sizes = {.B = 1,
                              .L = L,
                              .H = H,
                              .D = D,
                              .W = static_cast<int>(W),
                              .eps = 1e-6f,
                              .x_strides = {L * H * D, H * D, D},
                              .angle_stride = 0,
                              .normalizes = 1},
                    .format = format,
                    .weight_format = weight_format,
                    .x = x.data(),
                    .weight = weight.data(),
                    .cos = cos.data(),
                    .sin = sin.data(),
                    .out = outs[variant].data(),
                };
                (variant == 0 ? kernel : qk_norm_rope_reference)(job, 0, L);
            }
            expect_close(outs[0].data(), outs[1].data(), count, format, "head", D);
        }
    }
}

KERNEL_TEST(swiglu_matches_reference) {
    const auto kernel = TINY_LLM_CHOOSE_SIMD(set, swiglu, swiglu_reference);
    Random random(3);
    for (const auto activation : {Activation::silu, Activation::gelu_tanh, Activation::swigluoai}) {
        for (const Format format : FORMATS) {
            for (const int64_t I : SIZES) {
                auto gate = random_array(random, ROWS * I, format, 200),
                     up = random_array(random, ROWS * I, format);
                std::vector<float> outs[2];
                for (int variant = 0; variant < 2; variant++) {
                    outs[variant].resize(ROWS * I);
                    const RowJob job = {
                        .M = ROWS,
                        .D = I,
                        .cost = I,
                        .format = format,
                        .options = {.activation = activation},
                        .inputs = {rows(gate, I, format), rows(up, I, format)},
                        .outputs = {rows(outs[variant], I, format)},
                    };
                    (variant == 0 ? kernel : swiglu_reference)(job, 0, ROWS);
                }
                expect_close(outs[0].data(), outs[1].data(), ROWS * I, format, "swiglu", I);
            }
        }
    }
}

}  // namespace tests

}  // namespace tiny_llm_ext
