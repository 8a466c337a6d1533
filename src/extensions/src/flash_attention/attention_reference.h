// Reference attention of one query row, in plain C++.
//
// Independent of the storage of keys and values, so paged attention uses it, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

namespace {  // internal linkage: the linker must not merge copies (see common/half.h)

/// Attention of one query row, with the online softmax of flash_attention.h.
///
/// visible: number of keys visible to the row. score(s): score of key s, −inf if hidden.
/// value(s): offset of key s's value in `values`. sink: the row's attention sink, or null. Writes D
/// elements to `out` at offset `to`.
template <typename Score, typename Value>
void attend_row(int64_t visible, int64_t D, Format format, const Score& score, const void* values,
                const Value& value, const float* sink, void* out, int64_t to) {
    constexpr float HIDDEN = -std::numeric_limits<float>::infinity();
    float largest = sink == nullptr ? HIDDEN : *sink;  // m
    float sum = sink == nullptr ? 0 : 1;               // l
    float total[MAX_HEAD_SIZE] = {};                   // o
    // [task 2.4.2 row]
    for (int64_t tile = 0; tile < visible; tile += ATTENTION_TILE) {
        const int64_t end = std::min(tile + ATTENTION_TILE, visible);
        float scores[ATTENTION_TILE];
        float most = largest;
        bool hidden = true;
        for (int64_t s = tile; s < end; s++) {
            scores[s - tile] = score(s);
            most = std::max(most, scores[s - tile]);
            hidden = hidden && scores[s - tile] == HIDDEN;
        }
        if (hidden) {
            continue;
        }
        const float factor = largest == most ? 1 : std::exp(largest - most);
        sum *= factor;
        for (int64_t d = 0; d < D; d++) {
            total[d] *= factor;
        }
        for (int64_t s = tile; s < end; s++) {
            const float weight = std::exp(scores[s - tile] - most);
            const int64_t from = value(s);
            sum += weight;
            for (int64_t d = 0; d < D; d++) {
                total[d] += weight * load_element(values, from + d, format);
            }
        }
        largest = most;
    }
    for (int64_t d = 0; d < D; d++) {
        store_element(out, to + d, format, sum == 0 ? 0 : total[d] / sum);
    }
    // [/task 2.4.2 row]
}

/// Dot product of D elements, summed in index order.
[[maybe_unused]] inline float dot(const void* x, int64_t i, const void* y, int64_t j, int64_t D,
                                  Format format) {
    // [task 2.4.2 dot]
    float total = 0;
    for (int64_t d = 0; d < D; d++) {
        total += load_element(x, i + d, format) * load_element(y, j + d, format);
    }
    return total;
    // [/task 2.4.2 dot]
}

}  // namespace

}  // namespace tiny_llm_ext
