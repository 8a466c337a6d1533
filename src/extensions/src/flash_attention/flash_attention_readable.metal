// Readable flash_attention on the GPU: the online softmax of flash_attention.h on 32×32 tiles.
//
// A threadgroup has 32 query rows of one head, one simdgroup per row, and iterates over tiles of 32
// keys. The threadgroup copies each tile to threadgroup memory, where all 32 rows read it: one
// device memory read per key instead of 32. Keys are staged first and replaced by values once every
// row has its scores. Lane i of a simdgroup holds elements i, i + 32, … of its query row and of its
// output, and the score of key i of the tile.
#include <metal_stdlib>

#include "src/flash_attention/metal_attention_scores.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int TILE = ATTENTION_READABLE_TILE;
constant constexpr int THREADS = TILE * 32;  // per threadgroup: one simdgroup per row
constant constexpr int SLICES = 8;           // slices of 32 elements: D is at most 256

// Stages rows first … first + count − 1 of keys or values in the tile. Ends with a barrier.
template <typename T>
void load_tile(device const T* rows, long stride, int count, int D, threadgroup T* tile,
               uint thread_index) {
    // [task 2.5.3 load]
    for (int i = int(thread_index); i < count * D; i += THREADS) {
        tile[i] = rows[i / D * stride + i % D];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // [/task 2.5.3 load]
}

template <typename T>
[[kernel, max_total_threads_per_threadgroup(1024)]] void flash_attention_readable(
    device const T* query [[buffer(0)]],           // B×H_q×L×D
    device const T* key [[buffer(1)]],             // B×H×S×D
    device const T* value [[buffer(2)]],           // B×H×S×D
    device const uchar* mask [[buffer(3)]],        // B×H_q×L×S, optional
    device const int* context_lens [[buffer(4)]],  // B, optional
    device const float* sinks [[buffer(5)]],       // H_q, optional
    device T* out [[buffer(6)]],                   // B×L×H_q×D
    constant const FlashAttentionParams& params [[buffer(7)]],
    threadgroup T* tile [[threadgroup(0)]],  // 32×D
    uint2 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint thread_index [[thread_index_in_threadgroup]]) {
    const int b = int(group.y) / params.H_q, head = int(group.y) % params.H_q;
    const int key_head = head / (params.H_q / params.H);
    const int first_row = int(group.x) * TILE, l = first_row + int(simdgroup);
    const int D = params.D, keys = keys_of(params, context_lens, b);
    // A row beyond the last one sees no keys, but its threads help to copy tiles.
    const int visible = l < params.L ? visible_keys(params, keys, l) : 0;
    const int most = visible_keys(params, keys, min(first_row + TILE, params.L) - 1);

    float q[SLICES], o[SLICES] = {};
    float largest = params.has_sinks ? sinks[head] : -INFINITY;
    float sum = params.has_sinks ? 1 : 0;
    for (int i = 0; i < SLICES; i++) {
        const int d = i * 32 + int(lane);
        const bool inside = l < params.L && d < D;
        q[i] = inside ? float(query[row_offset(params.query_strides, b, head, l) + d]) : 0.0f;
    }

    // [task 2.5.3 tiles]
    for (int first = 0; first < most; first += TILE) {
        const int tile_keys = min(TILE, most - first);
        const int visible_in_tile = clamp(visible - first, 0, tile_keys);
        load_tile(key + row_offset(params.key_strides, b, key_head, first), params.key_strides[2],
                  tile_keys, D, tile, thread_index);

        // The score of key j is a sum over all lanes; lane j stores it.
        float score = -INFINITY;
        for (int j = 0; j < visible_in_tile; j++) {
            float product = 0;
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                product += d < D ? q[i] * float(tile[j * D + d]) : 0.0f;
            }
            product = simd_sum(product) * params.scale;
            score = int(lane) == j ? product : score;
        }
        if (params.mask_kind != ATTENTION_MASK_NONE && int(lane) < visible_in_tile) {
            score = masked(params, mask, mask_row(params, b, head, l), first + int(lane), score);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // keys no longer needed
        load_tile(value + row_offset(params.value_strides, b, key_head, first),
                  params.value_strides[2], tile_keys, D, tile, thread_index);

        const float larger = max(largest, simd_max(score));
        const float factor = rescale(largest, larger);
        const float weight = weight_of(score, larger);
        largest = larger;
        sum = sum * factor + simd_sum(weight);
        for (int i = 0; i < SLICES; i++) {
            o[i] *= factor;
        }
        for (int j = 0; j < visible_in_tile; j++) {
            const float w = simd_broadcast(weight, ushort(j));
            for (int i = 0; i < SLICES; i++) {
                const int d = i * 32 + int(lane);
                o[i] += d < D ? w * float(tile[j * D + d]) : 0.0f;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // values no longer needed
    }
    // [/task 2.5.3 tiles]

    if (l < params.L) {
        device T* row = out + out_offset(params, b, head, l);
        for (int i = 0; i < SLICES; i++) {
            const int d = i * 32 + int(lane);
            if (d < D) {
                row[d] = T(sum == 0 ? 0.0f : o[i] / sum);
            }
        }
    }
}

#define INSTANTIATE(name, T)                                                                     \
    template [[host_name("flash_attention_readable_" #name)]] [[kernel]] void                    \
    flash_attention_readable<T>(device const T*, device const T*, device const T*,               \
                                device const uchar*, device const int*, device const float*,     \
                                device T*, constant const FlashAttentionParams&, threadgroup T*, \
                                uint2, uint, uint, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
