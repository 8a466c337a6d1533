// Attention of the course's Week 4, second step: vectorized online softmax and weighted sum of a
// tile's values.
//
// Weights are powers of two: exp(x) = 2^(x · log₂ e), with log₂ e folded into the scale of the
// scores. A polynomial approximates 2 to the power of the fractional part.
#include "common/simd.h"
#include "src/flash_attention/attention_week4.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr float LOG2_E = 1.44269504f;
constexpr int VECTOR_BLOCK = 8;  // vectors of columns accumulated at the same time

// 2ᶠ = Σ POWERS_OF_2[i] · fⁱ for −½ ≤ f ≤ ½, with relative error 2.4 · 10⁻⁷.
constexpr int DEGREE = 5;
constexpr float POWERS_OF_2[DEGREE + 1] = {
    1.0f, 0.693147004f, 0.240222424f, 0.0555073358f, 0.00967151299f, 0.00132647273f,
};

// 2ˣ for x ≤ 0; 0 below −126, NaN for NaN.
Floats exp2_of_negative(Floats x) {
    // [task 4.6.2 exp]
    const Floats lowest = splat(-126.0f);
    const Floats clamped = max(lowest, x);
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to an integer
    const Floats shifted = clamped + magic;
    const Floats f = clamped - (shifted - magic);
    Floats p = splat(POWERS_OF_2[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--) {
        p = fma(p, f, splat(POWERS_OF_2[i]));
    }
    // The integer is in the lowest bits of `shifted`; shifted up, it becomes an exponent.
    const Floats two_to_n = as_floats((as_ints(shifted) << 23) + (127 << 23));
    return x < lowest ? Floats{} : p * two_to_n;
    // [/task 4.6.2 exp]
}

// Replaces the scores of `count` keys with weights 2^(score − largest) and adds the weights to the
// state, which is first rescaled if the maximum grows. `scores` is padded to full vectors.
void softmax_weights(SoftmaxState& state, float* scores, int count, int64_t D) {
    for (int s = count; s % LANES != 0; s++) {
        scores[s] = -__builtin_inff();  // weight 0
    }
    // [task 4.6.2 softmax]
    Floats most = splat(state.largest);
    for (int s = 0; s < count; s += LANES) {
        most = max(load_bits<Floats>(scores + s), most);
    }
    const float largest = max(most);
    if (largest > state.largest) {
        const float factor = exp2_of_negative(splat(state.largest - largest))[0];
        state.sum *= factor;
        for (int64_t d = 0; d < D; d++) {
            state.out[d] *= factor;
        }
        state.largest = largest;
    }
    // If all scores are −inf, 0 avoids −inf − (−inf) = NaN.
    const Floats base = splat(largest == -__builtin_inff() ? 0 : largest);
    Floats total = {};
    for (int s = 0; s < count; s += LANES) {
        const Floats weights = exp2_of_negative(load_bits<Floats>(scores + s) - base);
        store(scores, s, Format::float32, weights);
        total = total + weights;
    }
    state.sum += sum(total);
    // [/task 4.6.2 softmax]
}

// out += weighted values of `count` keys, in key order for every column.
template <Format format>
void add_values(const float* weights, const void* values, const KeyTile& tile, int count, int64_t D,
                float* out) {
    int64_t d = 0;
    // [task 4.6.2 values]
    for (; d + VECTOR_BLOCK * LANES <= D; d += VECTOR_BLOCK * LANES) {
        Floats sums[VECTOR_BLOCK];
        for (int v = 0; v < VECTOR_BLOCK; v++) {
            sums[v] = load_bits<Floats>(out + d + v * LANES);
        }
        for (int s = 0; s < count; s++) {
            const Floats weight = splat(weights[s]);
            for (int v = 0; v < VECTOR_BLOCK; v++) {
                const int64_t offset = tile.values[s] + d + v * LANES;
                sums[v] = fma(weight, load(values, offset, format), sums[v]);
            }
        }
        for (int v = 0; v < VECTOR_BLOCK; v++) {
            store(out, d + v * LANES, Format::float32, sums[v]);
        }
    }
    // [/task 4.6.2 values]
    for (; d < D; d += LANES) {
        const int columns = static_cast<int>(D - d < LANES ? D - d : LANES);
        Floats total = load_bits<Floats>(out + d);
        for (int s = 0; s < count; s++) {
            const int64_t offset = tile.values[s] + d;
            total = fma(splat(weights[s]), load(values, offset, format, columns), total);
        }
        store(out, d, Format::float32, total);
    }
}

// Converts a row's query to float32, zero-padded to full vectors.
void widen_query(const AttentionRows& block, int row, float* query) {
    for (int64_t d = 0; d < block.D; d += LANES) {
        const int count = static_cast<int>(block.D - d < LANES ? block.D - d : LANES);
        store(query, d, Format::float32,
              load(block.query, block.from[row] + d, block.format, count));
    }
}

// Accumulates attention of a row over the first `count` keys of a tile.
void attend_to_tile(const AttentionRows& block, const float* query, const KeyTile& tile, int count,
                    SoftmaxState& state) {
    float scores[ATTENTION_TILE];
    attention_scores(query, block.keys, tile, count, block.D, block.format, block.scale * LOG2_E,
                     scores);
    softmax_weights(state, scores, count, block.D);
    switch (block.format) {
        case Format::float32:
            return add_values<Format::float32>(scores, block.values, tile, count, block.D,
                                               state.out);
        case Format::float16:
            return add_values<Format::float16>(scores, block.values, tile, count, block.D,
                                               state.out);
        default:
            return add_values<Format::bfloat16>(scores, block.values, tile, count, block.D,
                                                state.out);
    }
}

}  // namespace

void attention_split(const AttentionRows& block, int64_t first, int64_t end, SoftmaxState* states) {
    float query[QUERY_ROWS][MAX_HEAD_SIZE];
    for (int row = 0; row < block.rows; row++) {
        widen_query(block, row, query[row]);
        states[row].largest = -__builtin_inff();
        states[row].sum = 0;
        memset(states[row].out, 0, sizeof states[row].out);
    }
    for (int64_t from = first; from < end; from += ATTENTION_TILE) {
        KeyTile tile;
        tile.count = static_cast<int>(end - from < ATTENTION_TILE ? end - from : ATTENTION_TILE);
        block.find(block.head, from, tile);
        for (int row = 0; row < block.rows; row++) {  // processes all rows while the tile is cached
            const int64_t seen = block.visible[row] - from;
            if (seen > 0) {
                const int count = static_cast<int>(seen < tile.count ? seen : tile.count);
                attend_to_tile(block, query[row], tile, count, states[row]);
            }
        }
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
