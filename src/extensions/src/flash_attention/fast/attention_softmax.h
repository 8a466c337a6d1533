// The online softmax of a block of query rows: a tile's scores become weights.
#pragma once

#include "src/flash_attention/fast/attention_block.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int KEY_VECTORS = KEYS / LANES;

// Multiplies a row's sums and out by `factor`: its maximum has grown.
inline void rescale(const AttentionBlock& block, int row, float factor) {
    float* sums = block.sums + row * LANES;
    store(sums, 0, Format::float32, load_bits<Floats>(sums) * factor);
    float* out = block.out + row * block.width;
    for (int64_t d = 0; d < block.width; d += LANES) {
        store(out, d, Format::float32, load_bits<Floats>(out + d) * factor);
    }
}

/// Multiplies a row's scores by the scale and replaces them with weights exp(score − largest); the
/// weight is zero for keys ≥ `visible` and, if SKIPS, for the first `skipped` keys.
///
/// mask: null, or KEYS values to add; −inf hides a key whatever its score.
template <bool SKIPS>
inline void softmax_weights(const AttentionBlock& block, int row, int visible, int skipped,
                            const float* mask) {
    const Floats hidden = splat(-__builtin_inff());
    float* scores = block.scores + row * KEYS;
    const float before = block.largest[row];
    Floats x[KEY_VECTORS];
    Floats most = splat(before);
    for (int v = 0; v < KEY_VECTORS; v++) {
        x[v] = load_bits<Floats>(scores + v * LANES) * block.scale;
        if (mask != nullptr) {
            const Floats added = load_bits<Floats>(mask + v * LANES);
            x[v] = added == hidden ? hidden : x[v] + added;
        }
        if (visible < KEYS) {
            x[v] = lane_indices() < visible - v * LANES ? x[v] : hidden;
        }
        if constexpr (SKIPS) {
            x[v] = lane_indices() < skipped - v * LANES ? hidden : x[v];
        }
        most = max(x[v], most);
    }
    const float largest = max(most);
    // While every key is hidden, 0 avoids −inf − (−inf) = NaN.
    const Floats base = splat(largest == -__builtin_inff() ? 0 : largest);
    if (largest > before) {
        rescale(block, row, exp_of_negative(splat(before) - base)[0]);
        block.largest[row] = largest;
    }
    float* sums = block.sums + row * LANES;
    Floats total = load_bits<Floats>(sums);
    for (int v = 0; v < KEY_VECTORS; v++) {
        const Floats weights = exp_of_negative(x[v] - base);
        total = total + weights;
        store(scores, v * LANES, Format::float32, weights);
    }
    store(sums, 0, Format::float32, total);
}

/// The softmax of single rows of a block, given the dot products of queries and a tile's keys.
class Softmax {
   public:
    /// visible, hidden, mask: see attend.
    Softmax(const AttentionBlock& block, const int* visible, const int* hidden, const float* mask,
            const Tile& tile)
        : block_(block), visible_(visible), hidden_(hidden), mask_(mask) {
        for (int i = 0; i < tile.count && block.kv_format == Format::int8; i++) {
            key_scales_[i] = int8_scale(tile.keys[i], block.D);
            value_scales_[i] = int8_scale(tile.values[i], block.D);
        }
    }

    /// Replaces a row's scores by weights. For int8, the scales of the keys apply before the
    /// softmax, those of the values after it.
    void run(int row) const {
        if (block_.kv_format == Format::int8) {
            scale_row(row, key_scales_);
        }
        const float* mask = mask_ == nullptr ? nullptr : mask_ + row * KEYS;
        if (hidden_ == nullptr) {
            softmax_weights<false>(block_, row, visible_[row], 0, mask);
        } else {
            softmax_weights<true>(block_, row, visible_[row], hidden_[row], mask);
        }
        if (block_.kv_format == Format::int8) {
            scale_row(row, value_scales_);
        }
    }

   private:
    void scale_row(int row, const float* scales) const {
        float* scores = block_.scores + row * KEYS;
        for (int key = 0; key < KEYS; key += LANES) {
            store(scores, key, Format::float32,
                  load_bits<Floats>(scores + key) * load_bits<Floats>(scales + key));
        }
    }

    const AttentionBlock& block_;
    const int *visible_, *hidden_;
    const float* mask_;
    float key_scales_[KEYS], value_scales_[KEYS];
};

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
