// Vector kernels of Gated DeltaNet layers against their references: every format, sizes with and
// without a partial vector, and state slots that are read, updated in place or unused.
#include <algorithm>
#include <cmath>

#include "common/row_job.h"
#include "src/causal_conv1d/causal_conv1d_kernels.h"
#include "src/gated_delta_rule/gated_delta_rule_kernels.h"
#include "tests/kernel_tests.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void causal_conv1d(const CausalConv1dJob& job, int64_t sequence,
                                         int64_t first, int64_t last);
                      extern const GatedDeltaRuleKernel gated_delta_rule;)
TINY_LLM_DECLARE_ROW_KERNELS(gated_rms_norm)
TINY_LLM_DECLARE_ROW_KERNELS(sigmoid_gate)

namespace tests {

namespace {

constexpr Format STATE_FORMATS[] = {Format::float32, Format::float16, Format::bfloat16};
constexpr int64_t WIDTHS[] = {1, 3, 7, 16, 31, 64, 131};

// Two sequences with seven tokens in total, and four slots. The first sequence reads slot 1 and
// writes to it twice; the second starts from zeros and also writes to the invalid slot 4. Slot 3
// is unused.
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

// `count` random elements in the given format. The buffer has four bytes per element in every
// format, so that its type is the same for all formats.
std::vector<float> random_array(Random& random, int64_t count, Format format = Format::float32) {
    std::vector<float> memory(count);
    for (int64_t i = 0; i < count; i++) {
        store_element(memory.data(), i, format, 2 * random.number());
    }
    return memory;
}

// Tolerance: 16 ulps in float32, because summation orders differ; one ulp in 16-bit formats.
void expect_close(const float* actual, const float* expected, int64_t count, Format format,
                  const std::string& what) {
    const float epsilon = format == Format::float32   ? 16 * 0x1p-23f
                          : format == Format::float16 ? 0x1p-10f
                                                      : 0x1p-7f;
    for (int64_t i = 0; i < count; i++) {
        const float a = load_element(actual, i, format), b = load_element(expected, i, format);
        expect(std::abs(a - b) <= epsilon * std::max(1.0f, std::abs(b)), [&] {
            return what + ", element " + std::to_string(i) + ": expected " + std::to_string(b) +
                   ", got " + std::to_string(a);
        });
    }
}

}  // namespace

KERNEL_TEST(causal_conv1d_matches_reference) {
    const auto kernel = TINY_LLM_CHOOSE_SIMD(set, causal_conv1d, causal_conv1d_reference);
    Random random(1);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t C : WIDTHS) {
            const int64_t K = 2 + C % 7;
            const bool is_tap_major = C % 2 == 0;
            const auto x = random_array(random, 7 * C, format),
                       taps = random_array(random, C * K, format);
            std::vector<float> states[2] = {random_array(random, 4 * (K - 1) * C, format)}, y[2];
            states[1] = states[0];
            for (int variant = 0; variant < 2; variant++) {
                y[variant].resize(7 * C);
                const CausalConv1dJob job = {
                    .C = C,
                    .K = K,
                    .format = format,
                    .weight_format = format,
                    .x = x.data(),
                    .weight = taps.data(),
                    .states = states[variant].data(),
                    .y = y[variant].data(),
                    .x_stride = C,
                    .weight_strides = {is_tap_major ? 1 : K, is_tap_major ? C : 1},
                    .slots = SLOTS,
                };
                for (int64_t sequence = 0; sequence < 2; sequence++) {
                    (variant == 0 ? kernel : causal_conv1d_reference)(job, sequence, 0, C);
                }
            }
            const std::string what = "of " + std::to_string(C) + " channels";
            expect_close(y[0].data(), y[1].data(), 7 * C, Format::float32, "y " + what);
            expect_close(states[0].data(), states[1].data(), 4 * (K - 1) * C, format,
                         "states " + what);
        }
    }
}

KERNEL_TEST(gated_delta_rule_matches_reference) {
    const auto& kernel = TINY_LLM_CHOOSE_SIMD(set, gated_delta_rule, gated_delta_rule_reference);
    Random random(2);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t D_v : WIDTHS) {
            const int64_t H_k = 1, H_v = 2, D_k = 2 + D_v % 9;
            const int64_t channels = 2 * H_k * D_k + H_v * D_v, states_size = 4 * H_v * D_k * D_v;
            const auto qkv = random_array(random, 7 * channels), A_log = random_array(random, H_v),
                       dt_bias = random_array(random, H_v),
                       a = random_array(random, 7 * H_v, format),
                       b = random_array(random, 7 * H_v, format);
            std::vector<float> states[2] = {random_array(random, states_size)}, o[2];
            states[1] = states[0];
            for (int variant = 0; variant < 2; variant++) {
                o[variant].resize(7 * H_v * D_v);
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
                    .states = states[variant].data(),
                    .o = o[variant].data(),
                    .factors = factors.data(),
                    .qkv_stride = channels,
                    .a_stride = H_v,
                    .b_stride = H_v,
                    .slots = SLOTS,
                };
                const auto& tested = variant == 0 ? kernel : gated_delta_rule_reference;
                tested.factors(job, 0, 7);
                for (int64_t head = 0; head < 2 * H_v; head++) {
                    for (int64_t first = 0; first < D_v; first += DELTA_COLUMNS) {
                        tested.recurrence(job, head / H_v, head % H_v, first,
                                          std::min(D_v, first + DELTA_COLUMNS));
                    }
                }
            }
            const std::string what = "of " + std::to_string(D_k) + "×" + std::to_string(D_v);
            expect_close(o[0].data(), o[1].data(), 7 * H_v * D_v, Format::float32, "o " + what);
            expect_close(states[0].data(), states[1].data(), states_size, Format::float32,
                         "states " + what);
        }
    }
}

KERNEL_TEST(gated_rms_norm_and_sigmoid_gate_match_reference) {
    const auto norm = TINY_LLM_CHOOSE_SIMD(set, gated_rms_norm, gated_rms_norm_reference);
    const auto gate = TINY_LLM_CHOOSE_SIMD(set, sigmoid_gate, sigmoid_gate_reference);
    Random random(3);
    for (const Format format : STATE_FORMATS) {
        for (const int64_t D : WIDTHS) {
            auto o = random_array(random, 3 * D), weight = random_array(random, D, format),
                 x = random_array(random, 3 * D, format), z = random_array(random, 3 * D, format);
            const int64_t gate_width = D % 2 ? D : 1;
            std::vector<float> normed[2], gated[2];
            for (int variant = 0; variant < 2; variant++) {
                normed[variant].resize(3 * D);
                gated[variant].resize(3 * D);
                RowJob job = {
                    .M = 3,
                    .D = D,
                    .cost = D,
                    .format = format,
                    .options = {.eps = 1e-6f},
                    .inputs = {{o.data(), D, D, Format::float32},
                               {z.data(), D, D, format},
                               {weight.data(), 0, D, format}},
                    .outputs = {{normed[variant].data(), D, D, format}},
                };
                (variant == 0 ? norm : gated_rms_norm_reference)(job, 0, 3);
                job.inputs[0] = {x.data(), D, D, format};
                job.inputs[1].width = gate_width;
                job.outputs[0].data = gated[variant].data();
                (variant == 0 ? gate : sigmoid_gate_reference)(job, 0, 3);
            }
            const std::string what = " of " + std::to_string(D);
            expect_close(normed[0].data(), normed[1].data(), 3 * D, format, "norm" + what);
            expect_close(gated[0].data(), gated[1].data(), 3 * D, format, "gate" + what);
        }
    }
}

}  // namespace tests

}  // namespace tiny_llm_ext
