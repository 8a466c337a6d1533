// Week 4's attention kernels against a double-precision reference; windowed paged attention against
// the scalar reference.
#include <cmath>
#include <vector>

#include "src/flash_attention/attention_week4.h"
#include "src/paged_attention/paged_attention_kernels.h"
#include "tests/kernel_tests.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(  //
    int64_t paged_attention_scratch(const PagedAttentionJob& job, int rows);
    void paged_attention(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t h,
                         int64_t first_row, int rows, const PagedSequence* next, float* scratch);)

}  // namespace tiny_llm_ext

namespace tiny_llm_ext::tests {

namespace {

constexpr Format FORMATS[] = {Format::float32, Format::float16, Format::bfloat16};

ScoresKernel scores_kernel([[maybe_unused]] InstructionSet set) {
    return TINY_LLM_CHOOSE_SIMD(set, attention_scores, nullptr);
}

SplitKernel split_kernel([[maybe_unused]] InstructionSet set) {
    return TINY_LLM_CHOOSE_SIMD(set, attention_split, nullptr);
}

// `count` random elements in the given format, in a buffer of exactly that size, so that a
// sanitizer detects out-of-bounds reads.
std::vector<char> random_array(Random& random, int64_t count, Format format) {
    std::vector<char> array(count * (format == Format::float32 ? 4 : 2));
    for (int64_t i = 0; i < count; i++) {
        store_element(array.data(), i, format, random.number());
    }
    return array;
}

// A head with S contiguous keys of D elements and two query rows, of which the first sees one key
// fewer than the second.
struct Problem {
    int64_t S, D;
    Format format;
    std::vector<char> query, keys, values;
    AttentionRows rows;

    Problem(int64_t S, int64_t D, Format format) : S(S), D(D), format(format) {
        Random random(S * 1000 + D);
        query = random_array(random, 2 * D, format);
        keys = random_array(random, S * D, format);
        values = random_array(random, S * D, format);
        rows = {};
        rows.D = D;
        rows.scale = 2 / std::sqrt(static_cast<float>(D));
        rows.format = format;
        rows.query = query.data();
        rows.keys = keys.data();
        rows.values = values.data();
        rows.rows = 2;
        rows.from[1] = D;
        rows.visible[0] = S - 1;
        rows.visible[1] = S;
        rows.find = find;
        rows.head = &this->D;
    }

    static void find(const void* head, int64_t first, KeyTile& tile) {
        for (int i = 0; i < tile.count; i++) {
            tile.keys[i] = tile.values[i] = (first + i) * *static_cast<const int64_t*>(head);
        }
    }

    double score(int row, int64_t key) const {
        double total = 0;
        for (int64_t d = 0; d < D; d++) {
            total += static_cast<double>(load_element(query.data(), row * D + d, format)) *
                     load_element(keys.data(), key * D + d, format);
        }
        return total * rows.scale;
    }

    std::string name() const {
        return std::to_string(S) + " keys of " + std::to_string(D) + ", format " +
               std::to_string(static_cast<int>(format));
    }
};

void expect_near(double x, double expected, double tolerance, const Problem& problem,
                 const char* what) {
    expect(std::abs(x - expected) <= tolerance, [&] {
        return problem.name() + ": " + what + " is " + std::to_string(x) + ", expected " +
               std::to_string(expected);
    });
}

void check_scores(const Problem& problem, ScoresKernel kernel) {
    std::vector<float> query(MAX_HEAD_SIZE);
    for (int64_t d = 0; d < problem.D; d++) {
        query[d] = load_element(problem.query.data(), d, problem.format);
    }
    KeyTile tile;
    tile.count = static_cast<int>(problem.S < ATTENTION_TILE ? problem.S : ATTENTION_TILE);
    Problem::find(&problem.D, 0, tile);
    std::vector<float> scores(ATTENTION_TILE);
    kernel(query.data(), problem.keys.data(), tile, tile.count, problem.D, problem.format,
           problem.rows.scale, scores.data());
    for (int s = 0; s < tile.count; s++) {
        expect_near(scores[s], problem.score(0, s), 1e-5, problem, "score");
    }
}

void check_split(const Problem& problem, SplitKernel kernel) {
    std::vector<SoftmaxState> states(QUERY_ROWS);
    kernel(problem.rows, 0, problem.S, states.data());
    for (int row = 0; row < 2; row++) {
        double sum = 0;
        std::vector<double> out(problem.D);
        for (int64_t s = 0; s < problem.rows.visible[row]; s++) {
            const double weight = std::exp(problem.score(row, s));
            sum += weight;
            for (int64_t d = 0; d < problem.D; d++) {
                out[d] +=
                    weight * load_element(problem.values.data(), s * problem.D + d, problem.format);
            }
        }
        for (int64_t d = 0; d < problem.D && sum > 0; d++) {
            expect_near(states[row].out[d] / states[row].sum, out[d] / sum, 1e-5, problem,
                        "output");
        }
    }
}

// Compares a kernel with the reference for L queries with a sliding window over S keys, and with
// attention sinks. The keys are in pages of 16, in reverse order; pages entirely before the window
// are missing.
void check_window(InstructionSet set, int64_t L, int64_t S, int64_t D, int64_t window,
                  Format format, bool has_sinks) {
    constexpr float SINKS[] = {-30, -1, 0, 1, 3, 30};
    constexpr int64_t H = 2, H_q = 6, PAGE = 16;
    Random random(S * 1000 + D + window);
    const int64_t pages = (S + PAGE - 1) / PAGE;
    const std::vector<char> query = random_array(random, L * H_q * D, format);
    const std::vector<char> keys = random_array(random, pages * H * PAGE * D, format);
    const std::vector<char> values = random_array(random, pages * H * PAGE * D, format);
    std::vector<char> out[2] = {query, query};
    std::vector<int32_t> table(pages);
    for (int64_t i = 0; i < pages; i++) {
        const bool is_missing = (i + 1) * PAGE <= S - L + 1 - window;
        table[i] = is_missing ? -1 : static_cast<int32_t>(pages - 1 - i);
    }
    for (int variant = 0; variant < 2; variant++) {
        const PagedAttentionJob job = {
            .H_q = H_q,
            .H = H,
            .D = D,
            .page_size = PAGE,
            .scale = 2 / std::sqrt(static_cast<float>(D)),
            .causal = true,
            .window = window,
            .format = format,
            .kv_format = format,
            .query = query.data(),
            .key_pages = keys.data(),
            .value_pages = values.data(),
            .out = out[variant].data(),
            .sinks = has_sinks ? SINKS : nullptr,
            .query_head_stride = D,
            .query_token_stride = H_q * D,
            .row_bytes = static_cast<int64_t>(keys.size()) / (pages * H * PAGE),
            .week4_kernel = {}};
        const PagedSequence sequence = {0, 0, L, S, table.data()};
        const int rows = static_cast<int>(L * H_q / H);
        auto scratch_size = TINY_LLM_CHOOSE_SIMD(
            set, paged_attention_scratch, [](const PagedAttentionJob&, int) { return int64_t{0}; });
        auto kernel = TINY_LLM_CHOOSE_SIMD(set, paged_attention, paged_attention_reference);
        if (format == Format::bfloat16) {
            scratch_size = TINY_LLM_CHOOSE_AMX(set, paged_attention_scratch, scratch_size);
            kernel = TINY_LLM_CHOOSE_AMX(set, paged_attention, kernel);
        }
        std::vector<float> scratch(scratch_size(job, rows) + 64);
        for (int64_t h = 0; h < H; h++) {
            (variant == 0 ? paged_attention_reference : kernel)(job, sequence, h, 0, rows,
                                                                &sequence, scratch.data());
        }
    }
    const float tolerance = format == Format::float32   ? 1e-5f
                            : format == Format::float16 ? 2e-3f
                                                        : 1.6e-2f;
    for (int64_t i = 0; i < L * H_q * D; i++) {
        const float expected = load_element(out[0].data(), i, format);
        const float actual = load_element(out[1].data(), i, format);
        expect(std::abs(actual - expected) <= tolerance, [&] {
            return std::to_string(L) + " queries, " + std::to_string(S) + " keys, window " +
                   std::to_string(window) + ": " + std::to_string(actual) + ", expected " +
                   std::to_string(expected);
        });
    }
}

}  // namespace

KERNEL_TEST(windowed_attention_matches_reference) {
    for (int64_t L : {1, 5, 20}) {
        for (int64_t S : {20, 140}) {
            for (int64_t window : {1, 17, 64, 500}) {
                for (Format format : FORMATS) {
                    check_window(set, L, S, 40, window, format, false);
                    check_window(set, L, S, 40, window, format, true);
                }
            }
        }
    }
}

KERNEL_TEST(week4_attention_matches_double_precision) {
    for (int64_t S : {1, 2, 63, 64, 65, 200}) {
        for (int64_t D : {1, 7, 33, 64, 80, 128, 250, 256}) {
            for (Format format : FORMATS) {
                const Problem problem(S, D, format);
                check_scores(problem, scores_kernel(set));
                check_split(problem, split_kernel(set));
            }
        }
    }
}

}  // namespace tiny_llm_ext::tests
