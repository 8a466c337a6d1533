// Attention for few query rows on the GPU: what flash_attention_decode.metal and
// paged_attention_decode.metal share. For Metal only.
//
// Few rows make little work, and all of it is reading keys and values: so the keys are split among
// threadgroups, 256 each, and each key is read once for all rows of its group of heads. In a
// threadgroup each of 8 simdgroups takes every eighth key, with an online softmax of its own; the 8
// are merged in threadgroup memory, and the splits by a kernel after this one. A split begins at a
// multiple of 256 keys, whatever S is: the result does not depend on how large the cache is.
#pragma once

#include <metal_stdlib>

#include "src/flash_attention/metal_attention_sources.h"

namespace tiny_llm_ext {

using namespace metal;

/// Which of the splits a threadgroup has, of how many, and where results go if it is not alone:
/// partial, rows×splits×D, and statistics, rows×splits×2, the largest score and the sum.
struct Split {
    int index, count;
    device float* partial;
    device float* statistics;

    void tell(long row, float largest, float sum) const {
        statistics[(row * count + index) * 2] = largest;
        statistics[(row * count + index) * 2 + 1] = sum;
    }
};

/// Numbers of threadgroup memory that attend_to_split wants.
template <int ROWS, int DIM>
constexpr int split_memory() {
    return ATTENTION_SPLIT_SIMDGROUPS * (DIM + 2 * ROWS);
}

/// ROWS query rows with their online softmax, in a simdgroup's registers: a lane holds PER
/// neighbours of each head of 32·PER elements.
template <int ROWS, int PER>
struct FewRows {
    float q[ROWS][PER], o[ROWS][PER], largest[ROWS], sum[ROWS];
};

/// The queries; rows beyond the last repeat it.
template <int ROWS, int PER, typename Source>
void load_rows(thread FewRows<ROWS, PER>& of, thread const AttentionGroup& group,
               thread const Source& source, int first_row, int row_count, int start) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = first_row + min(r, row_count - 1);
        const auto from = source.query(group.head(row), group.token(row));
        for (int i = 0; i < PER; i++) {
            of.q[r][i] = start + i < group.D ? float(from[start + i]) : 0.0f;
            of.o[r][i] = 0;
        }
        of.largest[r] = -INFINITY;
        of.sum[r] = 0;
    }
}

/// Keys first, first + 8, … below `end`, for all rows. start: this lane's elements of a head.
template <int ROWS, int PER, typename Source>
void attend_to_keys(thread FewRows<ROWS, PER>& of, thread const AttentionGroup& group,
                    thread Source& source, int first_row, int row_count, int start, int first,
                    int end) {
    const bool masks = source.masks();
    for (int s = first; s < end; s += ATTENTION_SPLIT_SIMDGROUPS) {
        float k[PER], v[PER];
        source.seek(s);
        for (int i = 0; i < PER; i++) {
            k[i] = start + i < group.D ? float(source.key[start + i]) : 0.0f;
            v[i] = start + i < group.D ? float(source.value[start + i]) : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = first_row + r;
            if (r >= row_count || s >= group.visible(row)) {
                continue;  // all lanes alike
            }
            float score = 0;
            for (int i = 0; i < PER; i++) {
                score += of.q[r][i] * k[i];
            }
            score = simd_sum(score) * group.scale;
            if (masks) {
                score = source.masked(group.head(row), group.token(row), s, score);
            }
            const float larger = max(of.largest[r], score);
            const float factor = rescale(of.largest[r], larger), weight = weight_of(score, larger);
            of.largest[r] = larger;
            of.sum[r] = of.sum[r] * factor + weight;
            for (int i = 0; i < PER; i++) {
                of.o[r][i] = of.o[r][i] * factor + weight * v[i];
            }
        }
    }
}

/// Row `row` of the group, of which `results` has each simdgroup's part, a DIM apart, and
/// largest_of and sum_of their statistics, ROWS apart: merged in the simdgroups' order.
template <typename T, int ROWS, int DIM, typename Source>
void merge_simdgroups(thread const AttentionGroup& group, thread const Source& source,
                      thread const Split& split, int row, threadgroup const float* results,
                      threadgroup const float* largest_of, threadgroup const float* sum_of,
                      uint simdgroup, uint lane) {
    constexpr int SIMDGROUPS = ATTENTION_SPLIT_SIMDGROUPS;
    float most = -INFINITY, total = 0;
    for (int j = 0; j < SIMDGROUPS; j++) {
        most = max(most, largest_of[j * ROWS]);
    }
    for (int j = 0; j < SIMDGROUPS; j++) {
        total += sum_of[j * ROWS] * rescale(largest_of[j * ROWS], most);
    }
    const int head = group.head(row), l = group.token(row);
    const long partial_row = source.partial_row(head, l);
    for (int d = int(simdgroup) * 32 + int(lane); d < group.D; d += SIMDGROUPS * 32) {
        float merged = 0;
        for (int j = 0; j < SIMDGROUPS; j++) {
            merged += results[j * DIM + d] * rescale(largest_of[j * ROWS], most);
        }
        if (split.count == 1) {
            source.out(head, l)[d] = T(total == 0 ? 0.0f : merged / total);
        } else {
            split.partial[(partial_row * split.count + split.index) * group.D + d] = merged;
        }
    }
    if (split.count > 1 && simdgroup == 0 && lane == 0) {
        split.tell(partial_row, most, total);
    }
}

/// ROWS rows of a group, from first_row on, attend to the keys of a split. To be called by all
/// threads of a threadgroup of 8 simdgroups; memory: split_memory<ROWS, DIM>() numbers.
template <typename T, int ROWS, int DIM, typename Source>
void attend_to_split(thread const AttentionGroup& group, thread Source& source,
                     thread const Split& split, int first_row, threadgroup float* memory,
                     uint simdgroup, uint lane) {
    constexpr int PER = DIM / 32, SIMDGROUPS = ATTENTION_SPLIT_SIMDGROUPS;
    const int row_count = min(ROWS, group.rows() - first_row), start = int(lane) * PER;
    const int first = split.index * ATTENTION_SPLIT;
    const int end = min(first + ATTENTION_SPLIT, group.visible(first_row + row_count - 1));
    if (split.count > 1 && first >= end) {  // nothing to be seen: the partial results are not read
        const int row = first_row + int(lane);
        if (simdgroup == 0 && int(lane) < row_count) {
            split.tell(source.partial_row(group.head(row), group.token(row)), -INFINITY, 0);
        }
        return;
    }
    FewRows<ROWS, PER> of;
    load_rows(of, group, source, first_row, row_count, start);
    attend_to_keys(of, group, source, first_row, row_count, start, first + int(simdgroup), end);

    threadgroup float* results = memory;
    threadgroup float* largest_of = memory + SIMDGROUPS * DIM;
    threadgroup float* sum_of = largest_of + SIMDGROUPS * ROWS;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (lane == 0) {
            largest_of[int(simdgroup) * ROWS + r] = of.largest[r];
            sum_of[int(simdgroup) * ROWS + r] = of.sum[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= row_count) {
            break;  // all threads alike
        }
        for (int i = 0; i < PER; i++) {
            results[int(simdgroup) * DIM + start + i] = of.o[r][i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        merge_simdgroups<T, ROWS, DIM>(group, source, split, first_row + r, results, largest_of + r,
                                       sum_of + r, simdgroup, lane);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

/// A row of out = Σ factor · partial / Σ factor · sum over its splits, in their order; by a
/// simdgroup. partial: splits×D, statistics: splits×2, of this row.
template <typename T>
void merge_splits(device const float* partial, device const float* statistics, int splits, int D,
                  device T* out, uint lane) {
    constexpr int SLICES = 8;  // of 32 elements: D up to 256
    device const float2* of_split = (device const float2*)statistics;
    float largest = -INFINITY;
    for (int split = int(lane); split < splits; split += 32) {
        largest = max(largest, of_split[split].x);
    }
    largest = simd_max(largest);

    float o[SLICES] = {}, sum = 0;
    for (int first = 0; first < splits; first += 32) {
        const int split = first + int(lane);
        const float2 mine = split < splits ? of_split[split] : float2(-INFINITY, 0.0f);
        const float factor = mine.y == 0 ? 0.0f : rescale(mine.x, largest);
        for (int j = 0; j < min(32, splits - first); j++) {
            const float f = simd_broadcast(factor, ushort(j));
            if (f == 0) {
                continue;  // it saw nothing, or nothing that counts
            }
            sum += f * simd_broadcast(mine.y, ushort(j));
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                o[i] += d < D ? f * partial[long(first + j) * D + d] : 0.0f;
            }
        }
    }
    for (int i = 0; i < SLICES; i++) {
        const int d = i * 32 + int(lane);
        if (d < D) {
            out[d] = T(sum == 0 ? 0.0f : o[i] / sum);
        }
    }
}

}  // namespace tiny_llm_ext
