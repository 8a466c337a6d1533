// GPU attention with simdgroup matrices, shared by flash_attention_tile.metal and
// paged_attention_tile.metal. Metal only.
//
// A simdgroup has 8 query rows; up to 8 simdgroups form a threadgroup and share its tiles of keys
// and values. All heads of a group are rows of one threadgroup, because they read the same keys.
// Queries (up to D = 256), weights, outputs and the online softmax stay in registers, as 8×8
// matrices:
//
//     scores (8×TILE) = q (8×D) · keysᵀ (D×TILE)          D/8 · TILE/8 products of 8×8 matrices
//     out (8×D) = out · factor + weights (8×TILE) · values (TILE×D)
//
// Sums are float32, in an order that depends only on the key's index. A hidden key has weight 0.
// Keys visible to no row of the threadgroup are not read, since their memory may hold NaN: the tile
// has zeros instead. A key visible to only some rows must be finite, because 0 · ∞ is NaN.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "common/metal_tile.h"
#include "src/flash_attention/metal_attention_sources.h"

namespace tiny_llm_ext {

inline float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, ushort(1)));
    return max(x, simd_shuffle_xor(x, ushort(8)));
}

inline float row_sum(float x) {
    x += simd_shuffle_xor(x, ushort(1));
    return x + simd_shuffle_xor(x, ushort(8));
}

/// Sizes of key and value tiles. DIM: head size, rounded up to 128, 256 or 512.
template <typename T, int DIM>
struct TileSizes {
    enum {
        // With 512, queries and outputs exceed the registers, and two tiles the threadgroup memory.
        // Queries are then read again for each tile, and values replace the keys in one tile.
        LARGE = DIM > 256,
        BYTES = LARGE ? 16384 : 8192,  // per tile
        KEYS = DIM * sizeof(T) <= 256 ? 32 : BYTES / (DIM * sizeof(T)),
        STRIDE = DIM + 16 / sizeof(T),  // row stride; the padding puts rows in different banks
        FOURS = KEYS * STRIDE / 4,      // memory in units of four elements
        VALUE_FOURS = LARGE ? 1 : FOURS,
        COLUMNS = KEYS / 8,  // matrices along the keys
        SLICES = DIM / 8,    // matrices along the head
    };
};

/// Copies four adjacent elements of a row of D, starting at d; zeros beyond its end. Stored: T, or
/// 8-bit integers, which any T holds exactly.
template <typename T, typename Stored>
void copy_four(threadgroup T* to, device const Stored* row, int d, int D, bool aligned) {
    if (aligned && d < D) {
        *(threadgroup vec<T, 4>*)to = vec<T, 4>(*(device const vec<Stored, 4>*)(row + d));
        return;
    }
    for (int i = 0; i < 4; i++) {
        to[i] = d + i < D ? T(row[d + i]) : T(0.0f);
    }
}

/// copy_four, or four zeros unless `copies`.
template <typename T, typename Stored>
void copy_or_clear(threadgroup T* to, device const Stored* row, bool copies, int d, int D,
                   bool aligned) {
    if (copies) {
        copy_four(to, row, d, D, aligned);
    } else {
        *(threadgroup vec<T, 4>*)to = vec<T, 4>(T(0.0f));
    }
}

/// Stages keys first + skipped … first + count − 1 and their values in tiles, padded with zeros on
/// both sides. Skips `keys` or `values` if null. scales: those of the keys, then of the values, if
/// the source is SCALED.
template <typename T, int DIM, typename Source>
void load_tiles(thread Source& source, int first, int skipped, int count, int D,
                threadgroup T* keys, threadgroup T* values, threadgroup float* scales,
                uint thread_index, uint threads) {
    using Sizes = TileSizes<T, DIM>;
    const bool aligned = source.aligned();
    for (int i = int(thread_index); i < Sizes::KEYS * DIM / 4; i += int(threads)) {
        const int row = i / (DIM / 4),
                  d = i % (DIM / 4) * 4;  // same row in all lanes, as DIM ≥ 128
        const bool is_inside = row >= skipped && row < count;
        const bool stages_scale = Source::SCALED && d == 0;
        if (is_inside) {
            source.seek(first + row);
        }
        if (keys != nullptr) {
            copy_or_clear(keys + row * Sizes::STRIDE + d, source.key, is_inside, d, D, aligned);
            if (stages_scale) {
                scales[row] = is_inside ? source.key_scale() : 0;
            }
        }
        if (values != nullptr) {
            copy_or_clear(values + row * Sizes::STRIDE + d, source.value, is_inside, d, D, aligned);
            if (stages_scale) {
                scales[Sizes::KEYS + row] = is_inside ? source.value_scale() : 0;
            }
        }
    }
}

/// 8 query rows with their online softmax, in a simdgroup's registers. Member functions are
/// qualified `thread`: Metal 4.1 has no default address space.
template <typename T, int DIM>
struct EightRows {
    using Sizes = TileSizes<T, DIM>;
    simdgroup_float8x8 q[Sizes::LARGE ? 1 : Sizes::SLICES], o[Sizes::SLICES];
    simdgroup_float8x8 scores[Sizes::COLUMNS];  // of the current tile; replaced by weights
    float largest, sum;                         // of this lane's row
    device const T* query;                      // this lane's row, from its first column on
    int left;                                   // number of elements of the row from there on

    /// Loads the queries and begins the softmax. row, sink: those of this lane's row; a row without
    /// a sink has null.
    EightRows(device const T* row, device const float* sink, int D, LanePosition position) thread {
        query = row + position.column;
        left = D - position.column;
#pragma unroll
        for (int i = 0; i < Sizes::SLICES; i++) {
            if (!Sizes::LARGE) {
                load_query(i, q[i]);
            }
            elements(o[i]) = float2(0.0f);
        }
        largest = sink == nullptr ? -INFINITY : *sink;
        sum = sink == nullptr ? 0 : 1;
    }

    /// Loads columns 8 · i … 8 · i + 7 of the queries.
    void load_query(int i, thread simdgroup_float8x8& slice) thread {
        const int d = i * 8;
        elements(slice) =
            float2(d < left ? float(query[d]) : 0.0f, d + 1 < left ? float(query[d + 1]) : 0.0f);
    }

    /// scores = q · keysᵀ · scale.
    void score(threadgroup const T* keys, float scale) thread {
#pragma unroll
        for (int j = 0; j < Sizes::COLUMNS; j++) {
            elements(scores[j]) = float2(0.0f);
#pragma unroll
            for (int i = 0; i < Sizes::SLICES; i++) {
                simdgroup_float8x8 part;
                load_matrix<true>(part, keys + j * 8 * Sizes::STRIDE + i * 8, Sizes::STRIDE);
                if (Sizes::LARGE) {
                    load_query(i, q[0]);
                }
                simdgroup_multiply_accumulate(scores[j], q[Sizes::LARGE ? 0 : i], part, scores[j]);
            }
            elements(scores[j]) *= scale;
        }
    }

    /// Sets scores of keys hidden from this lane's row to −∞ and adds the mask to the others.
    /// first: the tile's first key; visible: number of leading keys visible to the row, of which
    /// `hidden` are before its window.
    template <typename Source>
    void apply_mask(thread const Source& source, int head, int l, int first, int visible,
                    int hidden, LanePosition position) thread {
        const bool has_mask = source.has_mask();
#pragma unroll
        for (int j = 0; j < Sizes::COLUMNS; j++) {
            for (int k = 0; k < 2; k++) {
                const int s = first + j * 8 + position.column + k;
                const bool is_visible = s >= hidden && s < visible;
                float score = is_visible ? elements(scores[j])[k] : -INFINITY;
                if (has_mask && is_visible) {
                    score = source.masked(head, l, s, score);
                }
                elements(scores[j])[k] = score;
            }
        }
    }

    /// Multiplies each key's column of scores or weights by the key's scale.
    void scale_columns(threadgroup const float* scales, LanePosition position) thread {
#pragma unroll
        for (int j = 0; j < Sizes::COLUMNS; j++) {
            const int key = j * 8 + position.column;
            elements(scores[j]) *= float2(scales[key], scales[key + 1]);
        }
    }

    /// Replaces scores with weights. Returns the factor by which `o` must be rescaled before
    /// weighted values are added.
    float softmax_weights() thread {
        float larger = -INFINITY, added = 0;
#pragma unroll
        for (int j = 0; j < Sizes::COLUMNS; j++) {
            larger = max(larger, max(elements(scores[j]).x, elements(scores[j]).y));
        }
        larger = max(largest, row_max(larger));
        const float factor = rescale(largest, larger);
#pragma unroll
        for (int j = 0; j < Sizes::COLUMNS; j++) {
            thread float2& pair = elements(scores[j]);
            pair = float2(weight_of(pair.x, larger), weight_of(pair.y, larger));
            added += pair.x + pair.y;
        }
        largest = larger;
        sum = sum * factor + row_sum(added);
        return factor;
    }

    /// o = o · factor + weights · values.
    void add(threadgroup const T* values, float factor) thread {
#pragma unroll
        for (int i = 0; i < Sizes::SLICES; i++) {
            elements(o[i]) *= factor;
#pragma unroll
            for (int j = 0; j < Sizes::COLUMNS; j++) {
                simdgroup_float8x8 part;
                load_matrix<false>(part, values + j * 8 * Sizes::STRIDE + i * 8, Sizes::STRIDE);
                simdgroup_multiply_accumulate(o[i], scores[j], part, o[i]);
            }
        }
    }

    /// Writes the normalized outputs. out: this lane's row.
    void store(device T* out, int D, LanePosition position) thread {
        for (int i = 0; i < Sizes::SLICES; i++) {
            const float2 pair = sum == 0 ? float2(0.0f) : elements(o[i]) / sum;
            const int d = i * 8 + position.column;
            if (d < D) {
                out[d] = T(pair.x);
            }
            if (d + 1 < D) {
                out[d + 1] = T(pair.y);
            }
        }
    }
};

/// Attention of a threadgroup's rows, starting at `block`, over all visible keys. Call from all
/// threads; keys: memory for TileSizes<T, DIM>::FOURS · 4 elements; values: VALUE_FOURS · 4;
/// scales: for 2 · KEYS, if the source is SCALED. Rows past the group's last row are copies of it
/// and are not stored.
template <typename T, int DIM, typename Source>
void attend_to_tiles(thread const AttentionGroup& group, thread Source& source, int block,
                     threadgroup T* keys, threadgroup T* values, threadgroup float* scales,
                     uint simdgroup, uint simdgroups, uint lane, uint thread_index) {
    constexpr int TILE = TileSizes<T, DIM>::KEYS;
    constexpr bool LARGE = TileSizes<T, DIM>::LARGE;
    const LanePosition position(lane);
    const int last = group.rows() - 1;
    const int first_row = block + int(simdgroup) * ATTENTION_MATRIX_ROWS;
    const int row = min(first_row + position.row, last);
    const int l = group.token(row), head = group.head(row), visible = group.visible(row);
    const int hidden = group.hidden(row);
    const int visible_to_first = group.visible(min(first_row, last));
    const int hidden_from_last = group.hidden(min(first_row + ATTENTION_MATRIX_ROWS - 1, last));
    const int most = group.visible(min(block + int(simdgroups) * ATTENTION_MATRIX_ROWS - 1, last));

    const int begin = group.hidden(min(block, last));
    device const float* sink = source.sinks == nullptr ? nullptr : source.sinks + head;
    EightRows<T, DIM> rows(source.query(head, l), sink, group.D, position);
    for (int first = begin / TILE * TILE; first < most; first += TILE) {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // previous tiles no longer needed
        const int skipped = begin - first, count = min(TILE, most - first);
        Source values_of_tile = source;  // a copy, because seek() only moves forward
        load_tiles<T, DIM>(source, first, skipped, count, group.D, keys, LARGE ? nullptr : values,
                           scales, thread_index, simdgroups * 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        rows.score(keys, group.scale);
        if (Source::SCALED) {
            rows.scale_columns(scales, position);
        }
        // Visibility checks are needed only if some row of the simdgroup does not see the whole
        // tile.
        if (source.has_mask() || first + TILE > visible_to_first || first < hidden_from_last) {
            rows.apply_mask(source, head, l, first, visible, hidden, position);
        }
        const float factor = rows.softmax_weights();
        if (LARGE) {
            threadgroup_barrier(mem_flags::mem_threadgroup);  // keys no longer needed
            load_tiles<T, DIM>(values_of_tile, first, skipped, count, group.D,
                               (threadgroup T*)nullptr, keys, scales, thread_index,
                               simdgroups * 32);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        if (Source::SCALED) {
            rows.scale_columns(scales + TILE, position);
        }
        rows.add(LARGE ? keys : values, factor);
    }
    if (first_row + position.row <= last) {
        rows.store(source.out(head, l), group.D, position);
    }
}

}  // namespace tiny_llm_ext
