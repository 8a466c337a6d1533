// Vectorized kernels of Gated DeltaNets against their references: ragged sizes, every format, and
// state slots that are read, written in place, and left alone.
#include <algorithm>
#include <cmath>

#include "src/causal_conv1d/causal_conv1d_kernels.h"
#include "src/gated_delta_rule/gated_delta_rule_kernels.h"
#include "src/gated_rms_norm/gated_rms_norm_kernels.h"
#include "src/sigmoid_gate/sigmoid_gate_kernels.h"
#include "tests/kernel_tests.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void causal_conv1d(const CausalConv1dJob& job, int64_t sequence,
                                         int64_t first, int64_t last);
                      extern const GatedDeltaRuleKernel gated_delta_rule;
                      void gated_rms_norm(const GatedRmsNormJob& job, int64_t first, int64_t last);
                      void sigmoid_gate(const SigmoidGateJob& job, int64_t first, int64_t last);)

namespace tests {

namespace {

constexpr Format STATE_FORMATS[] = {Format::float32, Format::float16, Format::bfloat16};
constexpr int64_t WIDTHS[] = {1, 3, 7, 16, 31, 64, 131};

// Two sequences of seven tokens and four slots. The first sequence writes the slot that it reads,
// twice; the second begins with zeros. Slot 3 is not touched.
constexpr int32_t CU_SEQLENS[] = {0, 4, 7}, READ_SLOTS[] = {1, -1};
constexpr int32_t WRITE_SLOTS[] = {1, -1, 0, 1, 4, -1, 2};
constexpr StateSlots SLOTS = {
    .T = 7,
    .B = 2,
    .S = 4,
    .cu_seqlens = CU_SEQLENS,
    .read_slots = READ_SLOTS,
    .write_slots = WRITE_SLOTS,
};

// Random elements of a format, in four bytes each, so that one type serves all formats.
std::vector<float> elements(Random& random, int64_t count, Format format = Format::float32) {
    std::vector<float> memory(count);
    for (int64_t i = 0; i < count; i++) {
        store_element(memory.data(), i, format, 2 * random.number());
    }
    return memory;
}

// Tolerance of a few roundings in float32, and one of the result.
void expect_equal(const float* actual, const float* expected, int64_t count, Format format,
                  const std::string& what) {
    const float epsilon = format == Format::float32   ? 16 * 0x1p-23f
                          : format == Format::float16 ? 0x1p-10f
                                                      : 0x1p-7f;
    for (int64_t i = 0; i < count; i++) {
        const float a = load_element(actual, i, format), b = load_element(expected, i, format);
        expect(std::abs(a - b) <= epsilon * std::max(1.0f, std::abs(b)), [&] {
            return what + ", number " + std::to_string(i) + ": expected " + std::to_string(b) +
                   ", got " + std::to_string(a);
        });
    }
}

}  // namespace

KERNEL_TEST(causal_conv1d_of_any_width) {
    const auto kernel = TINY_LLM_CHOOSE_SIMD(set, causal_conv1d, causal_conv1d_reference);
    Random random(1);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t C : WIDTHS) {
            const int64_t K = 2 + C % 7;
            const bool by_tap = C % 2 == 0;
            const auto x = elements(random, 7 * C, format), taps = elements(random, C * K, format);
            std::vector<float> states[2] = {elements(random, 4 * (K - 1) * C, format)}, y[2];
            states[1] = states[0];
            for (int which = 0; which < 2; which++) {
                y[which].resize(7 * C);
                const CausalConv1dJob job = {
                    .C = C,
                    .K = K,
                    .format = format,
                    .weight_format = format,
                    .x = x.data(),
                    .weight = taps.data(),
                    .states = states[which].data(),
                    .y = y[which].data(),
                    .x_stride = C,
                    .weight_strides = {by_tap ? 1 : K, by_tap ? C : 1},
                    .slots = SLOTS,
                };
                for (int64_t sequence = 0; sequence < 2; sequence++) {
                    (which == 0 ? kernel : causal_conv1d_reference)(job, sequence, 0, C);
                }
            }
            const std::string what = "of " + std::to_string(C) + " channels";
            expect_equal(y[0].data(), y[1].data(), 7 * C, Format::float32, "y " + what);
            expect_equal(states[0].data(), states[1].data(), 4 * (K - 1) * C, format,
                         "states " + what);
        }
    }
}

KERNEL_TEST(gated_delta_rule_of_any_width) {
    const auto& kernel = TINY_LLM_CHOOSE_SIMD(set, gated_delta_rule, gated_delta_rule_reference);
    Random random(2);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t D_v : WIDTHS) {
            const int64_t H_k = 1, H_v = 2, D_k = 2 + D_v % 9;
            const int64_t channels = 2 * H_k * D_k + H_v * D_v, states_size = 4 * H_v * D_k * D_v;
            const auto qkv = elements(random, 7 * channels), A_log = elements(random, H_v),
                       dt_bias = elements(random, H_v), a = elements(random, 7 * H_v, format),
                       b = elements(random, 7 * H_v, format);
            std::vector<float> states[2] = {elements(random, states_size)}, o[2];
            states[1] = states[0];
            for (int which = 0; which < 2; which++) {
                o[which].resize(7 * H_v * D_v);
                std::vector<DeltaFactors> factors(7 * H_v);
                const GatedDeltaRuleJob job = {
                    .H_k = H_k,
                    .H_v = H_v,
                    .D_k = D_k,
                    .D_v = D_v,
                    .format = format,
                    .qkv = qkv.data(),
                    .a = a.data(),
                    .b = b.data(),
                    .A_log = A_log.data(),
                    .dt_bias = dt_bias.data(),
                    .states = states[which].data(),
                    .o = o[which].data(),
                    .factors = factors.data(),
                    .qkv_stride = channels,
                    .a_stride = H_v,
                    .b_stride = H_v,
                    .slots = SLOTS,
                };
                const auto& tested = which == 0 ? kernel : gated_delta_rule_reference;
                tested.factors(job, 0, 7);
                for (int64_t head = 0; head < 2 * H_v; head++) {
                    for (int64_t first = 0; first < D_v; first += DELTA_COLUMNS) {
                        tested.recurrence(job, head / H_v, head % H_v, first,
                                          std::min(D_v, first + DELTA_COLUMNS));
                    }
                }
            }
            const std::string what = "of " + std::to_string(D_k) + "×" + std::to_string(D_v);
            expect_equal(o[0].data(), o[1].data(), 7 * H_v * D_v, Format::float32, "o " + what);
            expect_equal(states[0].data(), states[1].data(), states_size, Format::float32,
                         "states " + what);
        }
    }
}

KERNEL_TEST(gates_of_any_row) {
    const auto norm = TINY_LLM_CHOOSE_SIMD(set, gated_rms_norm, gated_rms_norm_reference);
    const auto gate = TINY_LLM_CHOOSE_SIMD(set, sigmoid_gate, sigmoid_gate_reference);
    Random random(3);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t D : WIDTHS) {
            const auto o = elements(random, 3 * D), weight = elements(random, D, format),
                       x = elements(random, 3 * D, format), z = elements(random, 3 * D, format);
            std::vector<float> normed[2], gated[2];
            for (int which = 0; which < 2; which++) {
                normed[which].resize(3 * D);
                gated[which].resize(3 * D);
                const GatedRmsNormJob norm_job = {3,
                                                  D,
                                                  1e-6f,
                                                  format,
                                                  format,
                                                  o.data(),
                                                  z.data(),
                                                  weight.data(),
                                                  normed[which].data(),
                                                  D,
                                                  D};
                (which == 0 ? norm : gated_rms_norm_reference)(norm_job, 0, 3);
                const SigmoidGateJob gate_job = {
                    3, D, format, x.data(), z.data(), gated[which].data(), D, D, D % 2};
                (which == 0 ? gate : sigmoid_gate_reference)(gate_job, 0, 3);
            }
            const std::string what = " of " + std::to_string(D);
            expect_equal(normed[0].data(), normed[1].data(), 3 * D, format, "norm" + what);
            expect_equal(gated[0].data(), gated[1].data(), 3 * D, format, "gate" + what);
        }
    }
}

}  // namespace tests

}  // namespace tiny_llm_ext
