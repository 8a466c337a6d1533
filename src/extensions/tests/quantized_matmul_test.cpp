// quantized_matmul kernels against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/quantized_matmul/quantized_matmul_kernels.h"
#include "tests/kernel_tests.h"

using namespace tiny_llm_ext;
using namespace tiny_llm_ext::tests;

namespace {

// A quantized matmul with random arguments.
struct Problem {
    int64_t M, O, I;
    int group_size, bits;
    Format format, scale_format;
    std::vector<uint32_t> b;
    std::vector<uint16_t> scales, biases, a;
    bool prepacked = false;
    bool floating_point = false;  // 4-bit floating-point weights (E2M1), without biases
    bool stores_biases = true;
    int activation_bits = 16;

    Problem(int64_t M, int64_t O, int64_t I, int group_size, int bits, Format format,
            Format scale_format)
        : M(M),
          O(O),
          I(I),
          group_size(group_size),
          bits(bits),
          format(format),
          scale_format(scale_format),
          b(O * I * bits / 32) {
        Random random(M * 1000 + O);
        std::generate(b.begin(), b.end(), [&] { return random.bits(); });
        scales = random.halves(O * I / group_size, scale_format, 0.1f);
        biases = random.halves(O * I / group_size, scale_format, 1.0f);
        a = random.halves(M * I, format, 2.0f);
    }

    QuantizedMatmulJob job(uint16_t* out, int64_t first_row, int64_t rows) const {
        return {rows,
                O,
                I,
                group_size,
                bits,
                b.data(),
                scales.data(),
                stores_biases ? biases.data() : nullptr,
                a.data() + first_row * I,
                out,
                scale_format,
                format,
                floating_point,
                prepacked,
                activation_bits};
    }

    // A copy of this problem with prepacked weights, `rows` rows per pack. The last pack is padded.
    Problem with_prepacked_weights(int rows) const {
        Problem other = *this;
        other.prepacked = true;
        other.b = prepack_weight(b, rows);
        other.scales = prepack_weight(scales, rows);
        other.biases = prepack_weight(biases, rows);
        return other;
    }

    template <typename Element>
    std::vector<Element> prepack_weight(const std::vector<Element>& matrix, int rows) const {
        const int64_t columns = static_cast<int64_t>(matrix.size()) / O;
        std::vector<Element> out;
        for (int64_t first = 0; first < O; first += rows) {
            for (int64_t column = 0; column < columns; column++) {
                for (int64_t o = first; o < first + rows; o++) {
                    out.push_back(o < O ? matrix[o * columns + column] : Element{});
                }
            }
        }
        return out;
    }

    // A copy of this problem with 4-bit floating-point weights.
    Problem without_biases() const {
        Problem other = *this;
        other.floating_point = true;
        other.stores_biases = false;
        return other;
    }

    // A copy of this problem with symmetric weights and stored biases.
    Problem with_symmetric_weights() const {
        Problem other = *this;
        const float zero = bits == 4 ? 8 : 128;
        for (size_t i = 0; i < scales.size(); i++) {
            const float scale = load_element(scales.data(), i, scale_format);
            store_element(other.biases.data(), i, scale_format, -zero * scale);
        }
        return other;
    }

    Problem with_8_bit_activations() const {
        Problem other = *this;
        other.activation_bits = 8;
        return other;
    }

    std::string name() const {
        return "M " + std::to_string(M) + ", O " + std::to_string(O) + ", I " + std::to_string(I) +
               ", group " + std::to_string(group_size) + ", bits " + std::to_string(bits) +
               (floating_point ? " in floating point" : "") +
               (activation_bits == 8 ? ", activations in 8 bits" : "") +
               (format == Format::float16 ? ", float16" : ", bfloat16") +
               (scale_format == Format::float16 ? ", scales float16" : ", scales bfloat16");
    }
};

const QuantizedMatmulKernel& kernel_of(InstructionSet set, [[maybe_unused]] bool exact_bfloat16) {
#if defined(__x86_64__)
    return set == InstructionSet::avx2         ? avx2::quantized_matmul_fixed_point
           : set == InstructionSet::avx512vnni ? avx512vnni::quantized_matmul_fixed_point
           : set == InstructionSet::amx        ? amx::quantized_matmul_tiles
           : exact_bfloat16                    ? quantized_matmul_avx512
                                               : avx512::quantized_matmul_fixed_point;
#else
    (void)set;
    return has_dot_products() ? neondot::quantized_matmul_fixed_point
                              : neon::quantized_matmul_fixed_point;
#endif
}

// Runs a kernel on `rows` rows of a problem, in the small chunks that parallel_for would use.
Guarded<uint16_t> multiply(const Problem& problem, const QuantizedMatmulKernel& kernel,
                           int64_t first_row, int64_t rows) {
    Guarded<uint16_t> out(rows * problem.O);
    const Problem prepacked = problem.with_prepacked_weights(kernel.prepack_rows);
    const QuantizedMatmulJob job = prepacked.job(out.data(), first_row, rows);
    // The scratch buffer has exactly this size, so that a sanitizer detects accesses beyond it.
    const int64_t bytes = kernel.scratch(job);
    void* scratch = nullptr;
    if (posix_memalign(&scratch, 64, bytes) != 0) {
        throw std::bad_alloc();
    }
    for (int64_t m = 0; m < rows; m += 16) {
        kernel.prepare(job, scratch, m, std::min(rows, m + 16));
    }
    for (int64_t o = 0; o < problem.O; o += QUANTIZED_MATMUL_PANEL) {
        kernel.run(job, scratch, o, std::min(problem.O, o + QUANTIZED_MATMUL_PANEL));
    }
    free(scratch);
    return out;
}

Guarded<uint16_t> multiply(const Problem& problem, InstructionSet set, int64_t first_row,
                           int64_t rows) {
    const bool exact_bfloat16 =
        problem.bits == 4 && problem.activation_bits == 16 && problem.format == Format::bfloat16;
    return multiply(problem, kernel_of(set, exact_bfloat16), first_row, rows);
}

// Tolerance: both kernels sum I products in float32 and round the result to the format. Fixed-point
// kernels also round the activations (error bound: quantized_matmul_fixed_point_simd.cpp).
float tolerance(const Problem& problem, int64_t m, int64_t o, float expected) {
    const int64_t groups = problem.I / problem.group_size;
    const float levels = static_cast<float>((1 << problem.bits) - 1);
    float bound = std::abs(expected) * (problem.format == Format::float16 ? 0x1p-10f : 0x1p-7f);
    for (int64_t g = 0; g < groups; g++) {
        float largest = 0, sum = 0;
        for (int64_t i = g * problem.group_size; i < (g + 1) * problem.group_size; i++) {
            const float x =
                std::abs(load_element(problem.a.data(), m * problem.I + i, problem.format));
            largest = std::max(largest, x);
            sum += x;
        }
        const float weight =
            levels * std::abs(load_element(problem.scales.data(), o * groups + g,
                                           problem.scale_format)) +
            std::abs(load_element(problem.biases.data(), o * groups + g, problem.scale_format));
        bound += weight * (0x1p-20f * sum + 0x1p-15f * largest * problem.group_size);
    }
    return bound;
}

// Week 4's vector kernel for row-major weights.
Week4Matmul row_major_kernel([[maybe_unused]] InstructionSet set) {
    return TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_vectors, nullptr);
}

// Week 4's kernels for weights prepacked with PACK_ROWS rows per pack.
std::vector<Week4Matmul> prepacked_kernels([[maybe_unused]] InstructionSet set) {
    return {TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_prepacked, nullptr),
            TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_prefetched, nullptr),
            TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_panels, nullptr),
            TINY_LLM_CHOOSE_SIMD(set, quantized_matmul_pairs, nullptr)};
}

// Runs a kernel without a prepare step on all rows, in chunks.
Guarded<uint16_t> multiply(const Problem& problem, Week4Matmul kernel) {
    Guarded<uint16_t> out(problem.M * problem.O);
    const QuantizedMatmulJob job = problem.job(out.data(), 0, problem.M);
    for (int64_t o = 0; o < problem.O; o += QUANTIZED_MATMUL_PANEL) {
        kernel(job, o, std::min(problem.O, o + QUANTIZED_MATMUL_PANEL));
    }
    return out;
}

// Weight i of output o.
double weight(const Problem& problem, int64_t o, int64_t i) {
    const int64_t at = o * problem.I + i, g = at / problem.group_size;
    const int per_word = 32 / problem.bits;
    const uint32_t q =
        problem.b[at / per_word] >> (at % per_word * problem.bits) & ((1u << problem.bits) - 1);
    const double scale = load_element(problem.scales.data(), g, problem.scale_format);
    return problem.floating_point
               ? 0.5 * TWICE_E2M1[q] * scale
               : q * scale + load_element(problem.biases.data(), g, problem.scale_format);
}

// Reference for 8-bit activations: rounds them group by group and multiplies in double precision.
void compare_with_rounded(const Problem& problem, const Guarded<uint16_t>& actual) {
    expect(actual.intact(), [&] { return problem.name() + ": wrote beyond its output"; });
    for (int64_t m = 0; m < problem.M; m++) {
        std::vector<double> rounded(problem.I);
        for (int64_t first = 0; first < problem.I; first += problem.group_size) {
            const auto x = [&](int64_t i) {
                return load_element(problem.a.data(), m * problem.I + i, problem.format);
            };
            float largest = 0;
            for (int64_t i = first; i < first + problem.group_size; i++) {
                largest = std::max(largest, std::abs(x(i)));
            }
            for (int64_t i = first; i < first + problem.group_size; i++) {
                rounded[i] = std::nearbyint(x(i) * (127.0f / largest)) * (largest / 127.0f);
            }
        }
        for (int64_t o = 0; o < problem.O; o++) {
            double expected = 0, magnitude = 0;
            for (int64_t i = 0; i < problem.I; i++) {
                expected += rounded[i] * weight(problem, o, i);
                magnitude += std::abs(rounded[i] * weight(problem, o, i));
            }
            const double x = load_element(actual.data(), m * problem.O + o, problem.format);
            const double ulp = problem.format == Format::float16 ? 0x1p-11 : 0x1p-8;
            expect(std::abs(x - expected) <= ulp * std::abs(expected) + 0x1p-18 * magnitude, [&] {
                return problem.name() + ": row " + std::to_string(m) + ", output " +
                       std::to_string(o) + " is " + std::to_string(x) + ", expected " +
                       std::to_string(expected);
            });
        }
    }
}

void compare_with_reference(const Problem& problem, const Guarded<uint16_t>& actual) {
    if (problem.activation_bits == 8) {
        compare_with_rounded(problem, actual);
        return;
    }
    Guarded<uint16_t> expected(problem.M * problem.O);
    const auto reference =
        problem.floating_point ? quantized_matmul_e2m1_reference : quantized_matmul_reference;
    reference(problem.job(expected.data(), 0, problem.M), 0, problem.O);
    expect(actual.intact(), [&] { return problem.name() + ": wrote beyond its output"; });
    for (int64_t m = 0; m < problem.M; m++) {
        for (int64_t o = 0; o < problem.O; o++) {
            const int64_t i = m * problem.O + o;
            const float e = load_element(expected.data(), i, problem.format);
            const float x = load_element(actual.data(), i, problem.format);
            expect(std::abs(x - e) <= tolerance(problem, m, o, e), [&] {
                return problem.name() + ": row " + std::to_string(m) + ", output " +
                       std::to_string(o) + " is " + std::to_string(x) + ", expected " +
                       std::to_string(e);
            });
        }
    }
}

constexpr Format HALVES[] = {Format::bfloat16, Format::float16};

// Problems of one size, for every combination of weight type, group size, and activation and scale
// formats.
std::vector<Problem> problems(int64_t M, int64_t O, int64_t I) {
    std::vector<Problem> all;
    for (int group_size : {32, 64, 128}) {
        for (Format format : HALVES) {
            for (Format scale_format : HALVES) {
                for (int bits : {4, 8}) {
                    all.emplace_back(M, O, I, group_size, bits, format, scale_format);
                }
                all.push_back(
                    Problem(M, O, I, group_size, 4, format, scale_format).without_biases());
            }
        }
    }
    return all;
}

// The problems of `problems(M, O, I)`, each with 16-bit and with 8-bit activations.
std::vector<Problem> problems_of_all_activations(int64_t M, int64_t O, int64_t I) {
    std::vector<Problem> all = problems(M, O, I);
    for (const Problem& problem : problems(M, O, I)) {
        all.push_back(problem.with_8_bit_activations());
    }
    return all;
}

}  // namespace

KERNEL_TEST(quantized_matmul_matches_reference) {
    const int64_t shapes[][3] = {{1, 64, 128}, {1, 67, 1280}, {2, 1, 128},
                                 {3, 33, 384}, {5, 70, 640},  {20, 129, 256}};
    for (const auto& [M, O, I] : shapes) {
        for (const Problem& problem : problems_of_all_activations(M, O, I)) {
            compare_with_reference(problem, multiply(problem, set, 0, M));
        }
    }
}

KERNEL_TEST(week4_kernels_match_reference) {
    const int64_t shapes[][3] = {{1, 67, 640}, {3, 5, 128}, {20, 65, 256}};
    for (const auto& [M, O, I] : shapes) {
        for (const Problem& problem : problems(M, O, I)) {
            if (!problem.floating_point) {
                compare_with_reference(problem, multiply(problem, quantized_matmul_factored));
                compare_with_reference(problem, multiply(problem, row_major_kernel(set)));
            }
        }
    }
}

KERNEL_TEST(week4_prepacked_kernels_match_reference) {
    const int64_t shapes[][3] = {{1, 64, 640}, {3, 32, 128}, {20, 96, 256}};
    for (const auto& [M, O, I] : shapes) {
        for (const Problem& problem : problems(M, O, I)) {
            if (!problem.floating_point) {
                const Problem prepacked = problem.with_prepacked_weights(PACK_ROWS);
                for (Week4Matmul kernel : prepacked_kernels(set)) {
                    compare_with_reference(problem, multiply(prepacked, kernel));
                }
            }
        }
    }
}

KERNEL_TEST(quantized_matmul_without_biases_has_the_same_bits) {
    const int64_t shapes[][3] = {{1, 70, 1280}, {2, 64, 384}, {5, 33, 640}, {20, 129, 384}};
    for (const auto& [M, O, I] : shapes) {
        for (const Problem& problem : problems_of_all_activations(M, O, I)) {
            if (problem.floating_point) {
                continue;
            }
            Problem symmetric = problem.with_symmetric_weights();
            Guarded<uint16_t> expected = multiply(symmetric, set, 0, M);
            symmetric.stores_biases = false;
            Guarded<uint16_t> actual = multiply(symmetric, set, 0, M);
            const size_t bytes = M * O * sizeof(uint16_t);
            expect(std::memcmp(actual.data(), expected.data(), bytes) == 0,
                   [&] { return problem.name() + ": symmetric weights without biases"; });
        }
    }
}

KERNEL_TEST(quantized_matmul_with_dot_products_has_the_same_bits) {
    const QuantizedMatmulKernel *dot = nullptr, *plain = nullptr;
#if defined(__x86_64__)
    plain = &avx2::quantized_matmul_fixed_point;
    if (set == InstructionSet::avx512vnni) {
        dot = &avx512vnni::quantized_matmul_fixed_point;
    } else if (set == InstructionSet::avx2 && has_dot_products()) {
        dot = &avxvnni::quantized_matmul_fixed_point;
    }
#else
    (void)set;
    plain = &neon::quantized_matmul_fixed_point;
    if (has_dot_products()) {
        dot = &neondot::quantized_matmul_fixed_point;
    }
#endif
    if (dot == nullptr) {
        return;
    }
    for (int64_t M : {1, 2, 4, 6, 13, 17, 33}) {
        for (const Problem& problem : problems_of_all_activations(M, 70, 256)) {
            Guarded<uint16_t> expected = multiply(problem, *plain, 0, M);
            Guarded<uint16_t> actual = multiply(problem, *dot, 0, M);
            const size_t bytes = M * problem.O * sizeof(uint16_t);
            expect(actual.intact() && std::memcmp(actual.data(), expected.data(), bytes) == 0,
                   [&] { return problem.name() + ": integer dot products"; });
        }
    }
}

KERNEL_TEST(quantized_matmul_is_batch_invariant) {
    for (int64_t M : {2, 3, 6, 7, 33}) {
        for (Format format : HALVES) {
            const Problem exact(M, 70, 256, 64, 4, format, format);
            for (const Problem& problem : {exact, exact.with_8_bit_activations()}) {
                Guarded<uint16_t> together = multiply(problem, set, 0, M);
                for (int64_t m : {int64_t{0}, M / 2, M - 1}) {
                    Guarded<uint16_t> alone = multiply(problem, set, m, 1);
                    const bool equal = std::memcmp(alone.data(), together.data() + m * problem.O,
                                                   problem.O * sizeof(uint16_t)) == 0;
                    expect(equal, [&] {
                        return problem.name() + ": row " + std::to_string(m) + " alone differs";
                    });
                }
            }
        }
    }
}

KERNEL_TEST(quantized_matmul_confines_nan_and_infinity_to_their_row) {
    for (Format format : HALVES) {
        const Problem exact(3, 67, 256, 128, 4, format, format);
        for (Problem problem : {exact, exact.with_8_bit_activations()}) {
            Guarded<uint16_t> clean = multiply(problem, set, 0, 3);
            for (float value : {NAN, INFINITY, -INFINITY}) {
                store_element(problem.a.data(), problem.I + 5, format, value);
                Guarded<uint16_t> dirty = multiply(problem, set, 0, 3);
                for (int64_t i = 0; i < 3 * problem.O; i++) {
                    const bool same = dirty[i] == clean[i];
                    const bool finite = std::isfinite(load_element(dirty.data(), i, format));
                    expect(i / problem.O == 1 ? !finite : same,
                           [&] { return problem.name() + ": a row with a non-finite number"; });
                }
            }
        }
    }
}

KERNEL_TEST(quantized_matmul_with_8_bit_activations_of_any_magnitude) {
    for (float magnitude : {0.0f, 0x1p-133f, 0x1p-100f, 0x1p-20f, 0x1p120f}) {
        Problem problem(2, 64, 128, 64, 4, Format::bfloat16, Format::bfloat16);
        for (int64_t i = 0; i < 2 * problem.I; i++) {  // rounding ±magnitude is exact
            store_element(problem.a.data(), i, problem.format, i % 3 == 0 ? magnitude : -magnitude);
        }
        const Problem rounded = problem.with_8_bit_activations();
        Guarded<uint16_t> expected = multiply(problem, set, 0, 2);
        Guarded<uint16_t> actual = multiply(rounded, set, 0, 2);
        for (int64_t i = 0; i < 2 * problem.O; i++) {
            const float e = load_element(expected.data(), i, problem.format);
            const float x = load_element(actual.data(), i, problem.format);
            // Below the smallest step, 2⁻⁹⁷ / 127, activations become 0.
            expect(std::abs(x - e) <= 0x1p-6f * std::abs(e) + 0x1p-90f,
                   [&] { return problem.name() + ": magnitude " + std::to_string(magnitude); });
        }
    }
}

KERNEL_TEST(quantized_matmul_with_8_bit_activations_does_not_overflow) {
    for (Problem problem : problems(2, 64, 128)) {
        const uint32_t largest = problem.floating_point ? 0x77777777 : 0xffffffff;
        std::fill(problem.b.begin(), problem.b.end(), largest);
        for (int64_t i = 0; i < 2 * problem.I; i++) {
            store_element(problem.a.data(), i, problem.format, i < problem.I ? 1.0f : -1.0f);
        }
        const Problem rounded = problem.with_8_bit_activations();
        compare_with_reference(rounded, multiply(rounded, set, 0, 2));
    }
}
