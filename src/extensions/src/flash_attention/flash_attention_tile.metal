// flash_attention on the GPU with simdgroup matrices: the kernel for prompts.
//
// A simdgroup has 8 query rows, up to 8 simdgroups are a threadgroup and share its tiles of keys
// and values. A row is a pair of a token and a query head of one group (row r of key head h is
// token r / G of query head h·G + r % G), because all heads of a group read the same keys. Queries,
// weights and results stay in registers as 8×8 matrices, the online softmax too:
//
//     scores (8×TILE) = q (8×D) · keysᵀ (D×TILE)          D/8 · TILE/8 matrix products
//     out (8×D) = out · factor + weights (8×TILE) · values (TILE×D)
//
// Everything is added up in float32, and in an order that depends on the key's index alone. A key
// beyond those that a row sees has weight 0, so the values of the whole tile must be finite.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "common/metal_tile.h"
#include "src/flash_attention/attention_scores.h"

using namespace metal;
using namespace tiny_llm_ext;

// The two neighbours of an 8×8 matrix that this lane holds: (row, column) and (row, column + 1).
// Lanes of one row differ in bits 0 and 3 of their index.
struct Place {
    int row, column;

    explicit Place(uint lane) {
        const int quad = int(lane) / 4;
        row = (quad & 4) + int(lane) / 2 % 4;
        column = (quad & 2) * 2 + int(lane) % 2 * 2;
    }
};

inline thread float2& elements(thread simdgroup_float8x8& matrix) {
    return reinterpret_cast<thread float2&>(matrix.thread_elements());
}

inline float row_max(float x) {
    x = max(x, simd_shuffle_xor(x, ushort(1)));
    return max(x, simd_shuffle_xor(x, ushort(8)));
}

inline float row_sum(float x) {
    x += simd_shuffle_xor(x, ushort(1));
    return x + simd_shuffle_xor(x, ushort(8));
}

// `count` rows of keys or values into a tile of TILE rows, zeros where there is nothing. A thread
// copies four neighbours at a time.
template <typename T, int TILE, int DIM, int STRIDE>
void load_tile(device const T* rows, long stride, int count, int D, bool aligned,
               threadgroup T* tile, uint thread_index, uint threads) {
    for (int i = int(thread_index); i < TILE * DIM / 4; i += int(threads)) {
        const int row = i / (DIM / 4), d = i % (DIM / 4) * 4;
        threadgroup T* to = tile + row * STRIDE + d;
        device const T* from = rows + row * stride + d;
        if (aligned && row < count && d < D) {
            *(threadgroup vec<T, 4>*)to = *(device const vec<T, 4>*)from;
            continue;
        }
        for (int j = 0; j < 4; j++) {
            to[j] = row < count && d + j < D ? from[j] : T(0.0f);
        }
    }
}

// DIM: the head size, rounded up. The tiles of keys and values have about 8 KB each.
template <typename T, int DIM>
[[kernel, max_total_threads_per_threadgroup(256)]] void flash_attention_tile(
    device const T* query [[buffer(0)]],           // B×H_q×L×D
    device const T* key [[buffer(1)]],             // B×H×S×D
    device const T* value [[buffer(2)]],           // B×H×S×D
    device const uchar* mask [[buffer(3)]],        // B×H_q×L×S, if there is one
    device const int* context_lens [[buffer(4)]],  // B, if there are
    device T* out [[buffer(5)]],                   // B×L×H_q×D
    constant const FlashAttentionParams& params [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]], uint2 groups [[threadgroups_per_grid]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    constexpr int TILE = DIM * sizeof(T) <= 256 ? 32 : 8192 / (DIM * sizeof(T));
    constexpr int STRIDE = DIM + 16 / sizeof(T);  // rows begin in different banks
    constexpr int COLUMNS = TILE / 8, SLICES = DIM / 8;
    threadgroup vec<T, 4> key_memory[TILE * STRIDE / 4];
    threadgroup vec<T, 4> value_memory[TILE * STRIDE / 4];
    threadgroup T* keys = (threadgroup T*)key_memory;
    threadgroup T* values = (threadgroup T*)value_memory;

    const int G = params.H_q / params.H, D = params.D, rows = params.L * G;
    const int b = int(group.y) / params.H, key_head = int(group.y) % params.H;
    const int key_count = keys_of(params, context_lens, b);
    // The last rows first: with a causal mask they see most. Rows beyond the last compute what the
    // last does, and do not write it.
    const int block = int(groups.x - 1 - group.x) * int(simdgroups) * ATTENTION_MATRIX_ROWS;
    const int first_row = block + int(simdgroup) * ATTENTION_MATRIX_ROWS;
    const Place place(lane);
    const int row = min(first_row + place.row, rows - 1);
    const int l = row / G, head = key_head * G + row % G;
    const int visible = visible_keys(params, key_count, l);
    const int visible_to_first = visible_keys(params, key_count, min(first_row, rows - 1) / G);
    const int last_of_group = min(block + int(simdgroups) * ATTENTION_MATRIX_ROWS, rows) - 1;
    const int most = visible_keys(params, key_count, last_of_group / G);
    const bool masks = params.mask_kind != ATTENTION_MASK_NONE;
    const long mask_start = masks ? mask_row(params, b, head, l) : 0;

    simdgroup_float8x8 q[SLICES], o[SLICES];
    device const T* query_row = query + row_offset(params.query_strides, b, head, l);
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const int d = i * 8 + place.column;
        elements(q[i]) =
            float2(d < D ? float(query_row[d]) : 0.0f, d + 1 < D ? float(query_row[d + 1]) : 0.0f);
        elements(o[i]) = float2(0.0f);
    }
    float largest = -INFINITY, sum = 0;

    for (int first = 0; first < most; first += TILE) {
        const int count = min(TILE, most - first);
        threadgroup_barrier(mem_flags::mem_threadgroup);  // the tiles before have been used
        load_tile<T, TILE, DIM, STRIDE>(key + row_offset(params.key_strides, b, key_head, first),
                                        params.key_strides[2], count, D, params.aligned, keys,
                                        thread_index, simdgroups * 32);
        load_tile<T, TILE, DIM, STRIDE>(
            value + row_offset(params.value_strides, b, key_head, first), params.value_strides[2],
            count, D, params.aligned, values, thread_index, simdgroups * 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);

        simdgroup_float8x8 scores[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            elements(scores[j]) = float2(0.0f);
#pragma unroll
            for (int i = 0; i < SLICES; i++) {
                simdgroup_float8x8 part;
                load_matrix<true>(part, keys + j * 8 * STRIDE + i * 8, STRIDE);
                simdgroup_multiply_accumulate(scores[j], q[i], part, scores[j]);
            }
            elements(scores[j]) *= params.scale;
        }

        // All rows of the simdgroup see the whole tile, or each of its keys must be asked for.
        if (masks || first + TILE > visible_to_first) {
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                for (int k = 0; k < 2; k++) {
                    const int s = first + j * 8 + place.column + k;
                    float score = s < visible ? elements(scores[j])[k] : -INFINITY;
                    if (masks && s < visible) {
                        score = masked(params, mask, mask_start, s, score);
                    }
                    elements(scores[j])[k] = score;
                }
            }
        }

        float larger = -INFINITY, added = 0;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            larger = max(larger, max(elements(scores[j]).x, elements(scores[j]).y));
        }
        larger = max(largest, row_max(larger));
        const float factor = rescale(largest, larger);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            thread float2& pair = elements(scores[j]);
            pair = float2(weight_of(pair.x, larger), weight_of(pair.y, larger));
            added += pair.x + pair.y;
        }
        largest = larger;
        sum = sum * factor + row_sum(added);

#pragma unroll
        for (int i = 0; i < SLICES; i++) {
            elements(o[i]) *= factor;
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                simdgroup_float8x8 part;
                load_matrix<false>(part, values + j * 8 * STRIDE + i * 8, STRIDE);
                simdgroup_multiply_accumulate(o[i], scores[j], part, o[i]);
            }
        }
    }

    if (first_row + place.row >= rows) {
        return;
    }
    device T* out_row = out + out_offset(params, b, head, l);
    for (int i = 0; i < SLICES; i++) {
        const float2 pair = sum == 0 ? float2(0.0f) : elements(o[i]) / sum;
        const int d = i * 8 + place.column;
        if (d < D) {
            out_row[d] = T(pair.x);
        }
        if (d + 1 < D) {
            out_row[d + 1] = T(pair.y);
        }
    }
}

#define INSTANTIATE(name, T, DIM)                                                                  \
    template [[host_name("flash_attention_tile_d" #DIM "_" #name)]] [[kernel]] void                \
    flash_attention_tile<T, DIM>(                                                                  \
        device const T*, device const T*, device const T*, device const uchar*, device const int*, \
        device T*, constant const FlashAttentionParams&, uint2, uint2, uint, uint, uint, uint);

#define INSTANTIATE_SIZES(name, T) \
    INSTANTIATE(name, T, 128)      \
    INSTANTIATE(name, T, 256)

INSTANTIATE_SIZES(float32, float)
INSTANTIATE_SIZES(float16, half)
INSTANTIATE_SIZES(bfloat16, bfloat)
