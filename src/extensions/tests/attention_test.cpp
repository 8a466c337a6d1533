// Week 4's attention kernels against a double-precision reference.
#include <cmath>
#include <vector>

#include "src/flash_attention/attention_week4.h"
#include "tests/kernel_tests.h"

namespace tiny_llm_ext::tests {

namespace {

constexpr Format FORMATS[] = {Format::float32, Format::float16, Format::bfloat16};

ScoresKernel scores_of([[maybe_unused]] InstructionSet set) {
    return TINY_LLM_CHOOSE_SIMD(set, attention_scores, nullptr);
}

SplitKernel part_of([[maybe_unused]] InstructionSet set) {
    return TINY_LLM_CHOOSE_SIMD(set, attention_split, nullptr);
}

// Random array in the given format, padded with NaN guards on both sides to catch out-of-bounds
// reads.
std::vector<char> numbers(Random& random, int64_t count, Format format) {
    std::vector<char> array(count * (format == Format::float32 ? 4 : 2));
    for (int64_t i = 0; i < count; i++) {
        store_element(array.data(), i, format, random.number());
    }
    return array;
}

// A head with `S` keys, D elements apart, and two query rows; the first row sees one key less.
struct Problem {
    int64_t S, D;
    Format format;
    std::vector<char> query, keys, values;
    AttentionRows rows;

    Problem(int64_t S, int64_t D, Format format) : S(S), D(D), format(format) {
        Random random(S * 1000 + D);
        query = numbers(random, 2 * D, format);
        keys = numbers(random, S * D, format);
        values = numbers(random, S * D, format);
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
        expect_near(scores[s], problem.score(0, s), 1e-5, problem, "a score");
    }
}

void check_part(const Problem& problem, SplitKernel kernel) {
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
                        "a weighted sum");
        }
    }
}

}  // namespace

KERNEL_TEST(the_course_s_attention_equals_double) {
    for (int64_t S : {1, 2, 63, 64, 65, 200}) {
        for (int64_t D : {1, 7, 33, 64, 80, 128, 250, 256}) {
            for (Format format : FORMATS) {
                const Problem problem(S, D, format);
                check_scores(problem, scores_of(set));
                check_part(problem, part_of(set));
            }
        }
    }
}

}  // namespace tiny_llm_ext::tests
