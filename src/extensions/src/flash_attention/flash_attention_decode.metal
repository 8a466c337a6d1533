// flash_attention on the GPU for few query rows: decoding.
//
// Few rows make little work, and all of it is reading keys and values: so the keys are split among
// threadgroups, 256 each, and each key is read once for all rows of its group of heads. In a
// threadgroup each of 8 simdgroups takes every eighth key, with an online softmax of its own; the 8
// are merged in threadgroup memory, and the splits by a kernel after this one. A split begins at a
// multiple of 256 keys, whatever S is: the result does not depend on how large the cache is.
#include <metal_stdlib>

#include "src/flash_attention/attention_scores.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int SIMDGROUPS = ATTENTION_SPLIT_SIMDGROUPS;

// ROWS query rows at a time; a lane holds PER neighbours of each head of DIM = 32·PER elements.
template <typename T, int ROWS, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void flash_attention_decode(
    device const T* query [[buffer(0)]],           // B×H_q×L×D
    device const T* key [[buffer(1)]],             // B×H×S×D
    device const T* value [[buffer(2)]],           // B×H×S×D
    device const uchar* mask [[buffer(3)]],        // B×H_q×L×S, if there is one
    device const int* context_lens [[buffer(4)]],  // B, if there are
    device T* out [[buffer(5)]],                   // B×L×H_q×D, written if there is one split
    device float* partial [[buffer(6)]],           // B×H_q×L×splits×D, written if there are more
    device float* statistics [[buffer(7)]],        // B×H_q×L×splits×2: the largest score, the sum
    constant const FlashAttentionParams& params [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    constexpr int PER = DIM / 32;
    threadgroup float results[SIMDGROUPS * DIM];
    threadgroup float largest_of[SIMDGROUPS * ROWS];
    threadgroup float sum_of[SIMDGROUPS * ROWS];

    const int G = params.H_q / params.H, D = params.D, rows = params.L * G;
    const int b = int(group.z) / params.H, key_head = int(group.z) % params.H;
    const int key_count = keys_of(params, context_lens, b);
    const int first_row = int(group.y) * ROWS, row_count = min(ROWS, rows - first_row);
    const int start = int(lane) * PER;  // this lane's elements of a head
    const bool masks = params.mask_kind != ATTENTION_MASK_NONE;

    float q[ROWS][PER], o[ROWS][PER], largest[ROWS], sum[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = first_row + min(r, row_count - 1);
        device const T* from =
            query + row_offset(params.query_strides, b, key_head * G + row % G, row / G);
        for (int i = 0; i < PER; i++) {
            q[r][i] = start + i < D ? float(from[start + i]) : 0.0f;
            o[r][i] = 0;
        }
        largest[r] = -INFINITY;
        sum[r] = 0;
    }

    const int first = int(group.x) * ATTENTION_SPLIT;
    const int last_row = first_row + row_count - 1;
    const int end = min(first + ATTENTION_SPLIT, visible_keys(params, key_count, last_row / G));
    for (int s = first + int(simdgroup); s < end; s += SIMDGROUPS) {
        float k[PER], v[PER];
        device const T* key_row = key + row_offset(params.key_strides, b, key_head, s);
        device const T* value_row = value + row_offset(params.value_strides, b, key_head, s);
        for (int i = 0; i < PER; i++) {
            k[i] = start + i < D ? float(key_row[start + i]) : 0.0f;
            v[i] = start + i < D ? float(value_row[start + i]) : 0.0f;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = first_row + r, l = row / G, head = key_head * G + row % G;
            if (r >= row_count || s >= visible_keys(params, key_count, l)) {
                continue;  // all lanes alike
            }
            float score = 0;
            for (int i = 0; i < PER; i++) {
                score += q[r][i] * k[i];
            }
            score = simd_sum(score) * params.scale;
            if (masks) {
                score = masked(params, mask, mask_row(params, b, head, l), s, score);
            }
            const float larger = max(largest[r], score);
            const float factor = rescale(largest[r], larger), weight = weight_of(score, larger);
            largest[r] = larger;
            sum[r] = sum[r] * factor + weight;
            for (int i = 0; i < PER; i++) {
                o[r][i] = o[r][i] * factor + weight * v[i];
            }
        }
    }

    // The simdgroups' results, merged in their order: every simdgroup does the same for its part
    // of the head.
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (lane == 0) {
            largest_of[int(simdgroup) * ROWS + r] = largest[r];
            sum_of[int(simdgroup) * ROWS + r] = sum[r];
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (r >= row_count) {
            break;  // all threads alike
        }
        for (int i = 0; i < PER; i++) {
            results[int(simdgroup) * DIM + start + i] = o[r][i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        float most = -INFINITY, total = 0;
        for (int j = 0; j < SIMDGROUPS; j++) {
            most = max(most, largest_of[j * ROWS + r]);
        }
        for (int j = 0; j < SIMDGROUPS; j++) {
            total += sum_of[j * ROWS + r] * rescale(largest_of[j * ROWS + r], most);
        }
        const int row = first_row + r, l = row / G, head = key_head * G + row % G;
        const long flat = ((long(b) * params.H_q + head) * params.L + l) * params.splits + group.x;
        for (int d = int(simdgroup) * 32 + int(lane); d < D; d += SIMDGROUPS * 32) {
            float merged = 0;
            for (int j = 0; j < SIMDGROUPS; j++) {
                merged += results[j * DIM + d] * rescale(largest_of[j * ROWS + r], most);
            }
            if (params.splits == 1) {
                out[out_offset(params, b, head, l) + d] = T(total == 0 ? 0.0f : merged / total);
            } else {
                partial[flat * D + d] = merged;
            }
        }
        if (params.splits > 1 && simdgroup == 0 && lane == 0) {
            statistics[flat * 2] = most;
            statistics[flat * 2 + 1] = total;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// out = Σ factor · partial / Σ factor · sum over the splits, in their order; a simdgroup a row.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void flash_attention_merge(
    device const float* partial [[buffer(0)]], device const float* statistics [[buffer(1)]],
    device T* out [[buffer(2)]], constant const FlashAttentionParams& params [[buffer(3)]],
    uint group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    constexpr int SLICES = 8;  // of 32 elements: D up to 256
    const int l = int(group) % params.L, head = int(group) / params.L % params.H_q;
    const int b = int(group) / params.L / params.H_q, D = params.D;
    device const float2* of_split = (device const float2*)statistics + long(group) * params.splits;
    device const float* rows = partial + long(group) * params.splits * D;

    float largest = -INFINITY;
    for (int split = int(lane); split < params.splits; split += 32) {
        largest = max(largest, of_split[split].x);
    }
    largest = simd_max(largest);

    float o[SLICES] = {}, sum = 0;
    for (int first = 0; first < params.splits; first += 32) {
        const int split = first + int(lane);
        const float2 mine = split < params.splits ? of_split[split] : float2(-INFINITY, 0.0f);
        const float factor = mine.y == 0 ? 0.0f : rescale(mine.x, largest);
        for (int j = 0; j < min(32, params.splits - first); j++) {
            const float f = simd_broadcast(factor, ushort(j));
            if (f == 0) {
                continue;  // it saw nothing, or nothing that counts
            }
            sum += f * simd_broadcast(mine.y, ushort(j));
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                o[i] += d < D ? f * rows[long(first + j) * D + d] : 0.0f;
            }
        }
    }
    device T* row = out + out_offset(params, b, head, l);
    for (int i = 0; i < SLICES; i++) {
        const int d = i * 32 + int(lane);
        if (d < D) {
            row[d] = T(sum == 0 ? 0.0f : o[i] / sum);
        }
    }
}

#define INSTANTIATE(name, T, ROWS, DIM)                                                        \
    template                                                                                   \
        [[host_name("flash_attention_decode_rows" #ROWS "_d" #DIM "_" #name)]] [[kernel]] void \
        flash_attention_decode<T, ROWS, DIM>(                                                  \
            device const T*, device const T*, device const T*, device const uchar*,            \
            device const int*, device T*, device float*, device float*,                        \
            constant const FlashAttentionParams&, uint3, uint, uint);

#define INSTANTIATE_ROWS(name, T, DIM) \
    INSTANTIATE(name, T, 4, DIM)       \
    INSTANTIATE(name, T, 8, DIM)

#define INSTANTIATE_SIZES(name, T)                                                \
    INSTANTIATE_ROWS(name, T, 128)                                                \
    INSTANTIATE_ROWS(name, T, 256)                                                \
    template [[host_name("flash_attention_merge_" #name)]] [[kernel]] void        \
    flash_attention_merge<T>(device const float*, device const float*, device T*, \
                             constant const FlashAttentionParams&, uint, uint);

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
