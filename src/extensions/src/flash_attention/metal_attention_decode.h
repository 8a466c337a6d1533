// GPU attention for few query rows, shared by flash_attention_decode.metal and
// paged_attention_decode.metal. Metal only.
//
// With few rows, reading keys and values dominates, so keys are split among threadgroups, 256 each,
// and each key is read once for all rows of its head group. Within a threadgroup, each of 8
// simdgroups processes every eighth run of 16 keys with a separate online softmax; the 8 states are
// reduced by halving in threadgroup memory, and the splits by a second kernel. Splits begin at
// multiples of 256 keys for any S, so a row's result depends only on its sequence, not on the batch
// or the cache size.
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_sources.h"

namespace tiny_llm_ext {

using namespace metal;

/// A threadgroup's split of the keys, and the outputs if there are several splits: partial,
/// rows×splits×D, and statistics, rows×splits×2 (maximum score and sum of the weights).
struct Split {
    int index, count;
    device float* partial;
    device float* statistics;

    void store_statistics(long row, float largest, float sum) const {
        statistics[(row * count + index) * 2] = largest;
        statistics[(row * count + index) * 2 + 1] = sum;
    }
};

/// Rows per merge. Half of the simdgroups write their partial results of these rows to threadgroup
/// memory, at most 16 KiB.
template <int ROWS, int DIM>
constexpr int rows_merged() {
    return ROWS * DIM <= 1024 ? ROWS : 1024 / DIM;
}

/// Threadgroup memory of attend_to_split, in float4s.
template <int ROWS, int DIM>
constexpr int split_memory() {
    constexpr int results = ATTENTION_SPLIT_SIMDGROUPS / 2 * rows_merged<ROWS, DIM>() * DIM;
    return results / 4 + ATTENTION_SPLIT_SIMDGROUPS * ROWS / 2;
}

/// ROWS query rows with their online softmax, in a simdgroup's registers: a lane holds PER adjacent
/// elements of each row of 32·PER elements. Rows beyond the last one have no visible keys.
template <int ROWS, int PER>
struct FewRows {
    float q[ROWS][PER], o[ROWS][PER], largest[ROWS], sum[ROWS];
    int visible[ROWS];  // number of leading visible keys
};

/// Loads this lane's PER elements of a row starting at `from`; zeros beyond `left` elements. WHOLE:
/// `left` and the row's offset are multiples of four.
template <bool WHOLE, int PER, typename T>
void load_elements(device const T* from, int left, thread float* x) {
    for (int i = 0; i < PER; i += 4) {
        if (WHOLE) {
            const vec<T, 4> four =
                i < left ? *(device const vec<T, 4>*)(from + i) : vec<T, 4>(T(0.0f));
            for (int j = 0; j < 4; j++) {
                x[i + j] = float(four[j]);
            }
        } else {
            for (int j = i; j < i + 4; j++) {
                x[j] = j < left ? float(from[j]) : 0.0f;
            }
        }
    }
}

/// Stores this lane's PER elements, which begin at element `start` of the row. WHOLE: D and the
/// row's offset are multiples of four.
template <bool WHOLE, int PER, typename T>
void store_elements(device T* row, int start, int D, thread const float* x) {
    for (int i = 0; i < PER; i += 4) {
        vec<T, 4> four;
        for (int j = 0; j < 4; j++) {
            four[j] = T(x[i + j]);
        }
        if (WHOLE && start + i < D) {
            *(device vec<T, 4>*)(row + start + i) = four;
        }
        for (int j = 0; !WHOLE && j < 4; j++) {
            if (start + i + j < D) {
                row[start + i + j] = four[j];
            }
        }
    }
}

/// Loads the queries and begins the softmax, with the sinks if `has_sinks`. WHOLE: D is a multiple
/// of four.
template <bool WHOLE, int ROWS, int PER, typename Source>
void load_rows(thread FewRows<ROWS, PER>& state, thread const AttentionGroup& group,
               thread const Source& source, int first_row, int row_count, int start,
               bool has_sinks) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < PER; i++) {
            state.q[r][i] = 0;
            state.o[r][i] = 0;
        }
        state.largest[r] = -INFINITY;
        state.sum[r] = 0;
        state.visible[r] = 0;
        if (r < row_count) {  // all lanes take the same branch
            const int head = group.head(first_row + r), l = group.token(first_row + r);
            const auto query = source.query(head, l) + start;
            for (int i = 0; i < PER; i++) {
                const int d = start + (WHOLE ? i / 4 * 4 : i);
                state.q[r][i] = d < group.D ? float(query[i]) : 0.0f;
            }
            state.visible[r] = group.visible(first_row + r);
            if (has_sinks) {
                state.largest[r] = source.sinks[head];
                state.sum[r] = 1;
            }
        }
    }
}

/// Accumulates the key k at position s and its value v. CHECKS: some row may not see the key, or
/// there is a mask. Fused multiply-adds are explicit, so that both variants of CHECKS give the same
/// bits.
template <bool CHECKS, int ROWS, int PER, typename Source>
void attend_to_key(thread FewRows<ROWS, PER>& state, thread const AttentionGroup& group,
                   thread const Source& source, int first_row, int s, thread const float* k,
                   thread const float* v) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (CHECKS && (s >= state.visible[r] || s < state.visible[r] - group.window)) {
            continue;  // all lanes take the same branch
        }
        float score = 0;
        for (int i = 0; i < PER; i++) {
            score = fma(state.q[r][i], k[i], score);
        }
        score = simd_sum(score) * group.scale;
        if (CHECKS && source.has_mask()) {
            const int row = first_row + r;
            score = source.masked(group.head(row), group.token(row), s, score);
        }
        const float larger = max(state.largest[r], score);
        const float factor = rescale(state.largest[r], larger), weight = weight_of(score, larger);
        state.largest[r] = larger;
        state.sum[r] = fma(state.sum[r], factor, weight);
        for (int i = 0; i < PER; i++) {
            state.o[r][i] = fma(state.o[r][i], factor, weight * v[i]);
        }
    }
}

/// Loads COUNT keys, starting at key s, and their values, then accumulates them. left: number of
/// elements from this lane's first element to the end of a row.
template <bool WHOLE, bool CHECKS, int COUNT, int ROWS, int PER, typename Source>
void attend_to_next(thread FewRows<ROWS, PER>& state, thread const AttentionGroup& group,
                    thread Source& source, int first_row, int left, int s) {
    float k[COUNT][PER], v[COUNT][PER];
    for (int i = 0; i < COUNT; i++) {
        load_elements<WHOLE, PER>(source.key, left, k[i]);
        load_elements<WHOLE, PER>(source.value, left, v[i]);
        if (Source::SCALED) {
            const float key_scale = source.key_scale(), value_scale = source.value_scale();
            for (int j = 0; j < PER; j++) {
                k[i][j] *= key_scale;
                v[i][j] *= value_scale;
            }
        }
        source.step();
    }
    for (int i = 0; i < COUNT; i++) {
        attend_to_key<CHECKS>(state, group, source, first_row, s + i, k[i], v[i]);
    }
}

/// Accumulates the runs of keys starting at first, first + 8·16, …, below `end`, for all rows.
/// start: this lane's first element of a row.
template <bool WHOLE, int ROWS, int PER, typename Source>
void attend_to_keys(thread FewRows<ROWS, PER>& state, thread const AttentionGroup& group,
                    thread Source& source, int first_row, int start, int first, int end) {
    constexpr int RUN = ATTENTION_SPLIT_RUN;
    constexpr int COUNT = PER <= 8 ? 4 : 2;  // keys in registers
    const int left = group.D - start;
    source.move(start);
    const bool has_runs = source.has_runs();
    // All rows see keys hidden_from_some … seen_by_all − 1.
    const int seen_by_all = source.has_mask() || !has_runs ? 0 : group.visible(first_row);
    const int hidden_from_all = group.hidden(first_row);
    const int hidden_from_some = group.hidden(min(first_row + ROWS, group.rows()) - 1);
    for (int run = first; run < end; run += ATTENTION_SPLIT_SIMDGROUPS * RUN) {
        const int run_end = min(run + RUN, end);
        int s = max(run, hidden_from_all);
        if (s >= run_end) {
            continue;  // no row sees these keys, and their pages may be freed
        }
        // A run of keys that begins outside some row's window is read key by key.
        const int whole_end = s < hidden_from_some ? s : min(run + RUN, seen_by_all) - (COUNT - 1);
        source.seek(s);
        while (s < run_end) {
            if (s < whole_end) {
                attend_to_next<WHOLE, false, COUNT>(state, group, source, first_row, left, s);
                s += COUNT;
                continue;
            }
            if (!has_runs) {
                source.seek(s);
            }
            attend_to_next<WHOLE, true, 1>(state, group, source, first_row, left, s);
            s++;
        }
    }
}

/// Reduces row r's maximum and sum over all simdgroups, and rescales this simdgroup's o to that
/// maximum. statistics: one entry per simdgroup, ROWS apart.
template <int ROWS, int PER>
float2 scale_to_all(thread FewRows<ROWS, PER>& state, int r, threadgroup const float2* statistics,
                    uint lane) {
    float2 mine = float2(-INFINITY, 0.0f);  // lane i reads the entry of simdgroup i
    if (int(lane) < ATTENTION_SPLIT_SIMDGROUPS) {
        mine = statistics[int(lane) * ROWS + r];
    }
    const float largest = simd_max(mine.x);
    const float factor = rescale(state.largest[r], largest);
    for (int i = 0; i < PER; i++) {
        state.o[r][i] *= factor;
    }
    return float2(largest, simd_sum(mine.y * rescale(mine.x, largest)));
}

/// Reduces rows first … first + COUNT − 1 over simdgroups, by halving: the upper half stores its
/// sums, the lower half adds them to its registers. The first simdgroup has the result.
template <int COUNT, int ROWS, int PER>
void add_simdgroups(thread FewRows<ROWS, PER>& state, int first, threadgroup float4* memory,
                    int simdgroup, uint lane) {
    constexpr int FOURS = PER / 4;
#pragma unroll
    for (int half = ATTENTION_SPLIT_SIMDGROUPS / 2; half > 0; half /= 2) {
        threadgroup float4* slot = memory + simdgroup % half * (COUNT * FOURS * 32) + int(lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = 0; i < COUNT * FOURS && simdgroup >= half && simdgroup < 2 * half; i++) {
            thread const float* o = state.o[first + i / FOURS] + i % FOURS * 4;
            slot[i * 32] = float4(o[0], o[1], o[2], o[3]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = 0; i < COUNT * FOURS && simdgroup < half; i++) {
            thread float* o = state.o[first + i / FOURS] + i % FOURS * 4;
            const float4 other = slot[i * 32];
            for (int j = 0; j < 4; j++) {
                o[j] += other[j];
            }
        }
    }
}

/// Called by the first simdgroup: writes row `row` of the group to `out`, or to the split's partial
/// results.
template <bool WHOLE, int PER, typename Source>
void store_row(thread const AttentionGroup& group, thread const Source& source,
               thread const Split& split, int row, thread const float* o, float2 statistics,
               int start, uint lane) {
    const int head = group.head(row), l = group.token(row), D = group.D;
    const float sum = statistics.y;
    if (split.count == 1) {
        float divided[PER];
        for (int i = 0; i < PER; i++) {
            divided[i] = sum == 0 ? 0.0f : o[i] / sum;
        }
        store_elements<WHOLE, PER>(source.out(head, l), start, D, divided);
        return;
    }
    const long partial_row = source.partial_row(head, l);
    store_elements<WHOLE, PER>(split.partial + (partial_row * split.count + split.index) * D, start,
                               D, o);
    if (lane == 0) {
        split.store_statistics(partial_row, statistics.x, sum);
    }
}

/// Attends to keys first … end − 1 of a split, merges the simdgroups' states, and stores the rows.
template <bool WHOLE, int ROWS, int DIM, typename Source>
void attend_and_merge(thread const AttentionGroup& group, thread Source& source,
                      thread const Split& split, int first_row, int row_count, int first, int end,
                      threadgroup float4* memory, int simdgroup, uint lane) {
    constexpr int PER = DIM / 32, MERGED = rows_merged<ROWS, DIM>();
    const int start = int(lane) * PER;
    FewRows<ROWS, PER> state;
    // A row's sink counts once: in the first simdgroup of the first split.
    const bool has_sinks = source.sinks != nullptr && split.index == 0 && simdgroup == 0;
    load_rows<WHOLE>(state, group, source, first_row, row_count, start, has_sinks);
    attend_to_keys<WHOLE>(state, group, source, first_row, start,
                          first + simdgroup * ATTENTION_SPLIT_RUN, end);

    threadgroup float2* statistics =
        (threadgroup float2*)(memory + ATTENTION_SPLIT_SIMDGROUPS / 2 * MERGED * DIM / 4);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (lane == 0) {
            statistics[simdgroup * ROWS + r] = float2(state.largest[r], state.sum[r]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int r = 0; r < ROWS; r += MERGED) {
        float2 totals[MERGED];
#pragma unroll
        for (int i = 0; i < MERGED; i++) {
            totals[i] = scale_to_all(state, r + i, statistics, lane);
        }
        add_simdgroups<MERGED>(state, r, memory, simdgroup, lane);
#pragma unroll
        for (int i = 0; i < MERGED; i++) {
            if (simdgroup == 0 && r + i < row_count) {
                store_row<WHOLE, PER>(group, source, split, first_row + r + i, state.o[r + i],
                                      totals[i], start, lane);
            }
        }
    }
}

/// ROWS rows of a group, starting at first_row, attend to the keys of a split. Call from all
/// threads of a threadgroup of 8 simdgroups; memory: split_memory<ROWS, DIM>() float4s.
template <int ROWS, int DIM, typename Source>
void attend_to_split(thread const AttentionGroup& group, thread Source& source,
                     thread const Split& split, int first_row, threadgroup float4* memory,
                     uint simdgroup, uint lane) {
    const int row_count = min(ROWS, group.rows() - first_row);
    const int first = split.index * ATTENTION_SPLIT;
    const int end = min(first + ATTENTION_SPLIT, group.visible(first_row + row_count - 1));
    const bool has_sinks = source.sinks != nullptr && split.index == 0;
    const bool is_empty = max(first, group.hidden(first_row)) >= end && !has_sinks;
    if (split.count > 1 && is_empty) {  // the merge ignores the partial result
        const int row = first_row + int(lane);
        if (simdgroup == 0 && int(lane) < row_count) {
            split.store_statistics(source.partial_row(group.head(row), group.token(row)), -INFINITY,
                                   0);
        }
    } else if (source.aligned()) {
        attend_and_merge<true, ROWS, DIM>(group, source, split, first_row, row_count, first, end,
                                          memory, int(simdgroup), lane);
    } else {
        attend_and_merge<false, ROWS, DIM>(group, source, split, first_row, row_count, first, end,
                                           memory, int(simdgroup), lane);
    }
}

/// Merges a row's splits, in order, in one simdgroup: out = Σ factor · partial / Σ factor · sum.
/// partial: splits×D, statistics: splits×2, of this row.
template <typename T>
void merge_splits(device const float* partial, device const float* statistics, int splits, int D,
                  device T* out, uint lane) {
    constexpr int SLICES = 16;  // slices of 32 elements: D is at most 512
    device const float2* split_statistics = (device const float2*)statistics;
    float largest = -INFINITY;
    for (int split = int(lane); split < splits; split += 32) {
        largest = max(largest, split_statistics[split].x);
    }
    largest = simd_max(largest);

    float o[SLICES] = {}, sum = 0;
    const int left = D - int(lane);  // elements from this lane's first one to the end
    partial += lane;
    out += lane;
    for (int first = 0; first < splits; first += 32) {
        const int split = first + int(lane);
        const float2 mine = split < splits ? split_statistics[split] : float2(-INFINITY, 0.0f);
        const float factor = mine.y == 0 ? 0.0f : rescale(mine.x, largest);
        for (int j = 0; j < min(32, splits - first); j++) {
            const float f = simd_broadcast(factor, ushort(j));
            if (f != 0) {  // the split has visible keys of nonzero weight
                sum += f * simd_broadcast(mine.y, ushort(j));
                for (int i = 0; i < SLICES; i++) {
                    o[i] += i * 32 < left ? f * partial[i * 32] : 0.0f;
                }
            }
            partial += D;
        }
    }
    for (int i = 0; i < SLICES; i++) {
        if (i * 32 < left) {
            out[i * 32] = T(sum == 0 ? 0.0f : o[i] / sum);
        }
    }
}

}  // namespace tiny_llm_ext
