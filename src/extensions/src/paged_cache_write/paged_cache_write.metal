// paged_cache_write on the GPU: one thread per element, or one simdgroup per 8-bit row. Contract:
// paged_cache_write.h.
#include <metal_stdlib>

#include "src/paged_cache_write/paged_cache_write_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void paged_cache_write_elements(device const T* tokens [[buffer(0)]],
                                           device const int* slots [[buffer(1)]],
                                           device T* pages [[buffer(2)]],
                                           constant const PagedCacheWriteParams& params
                                           [[buffer(3)]],
                                           uint2 position [[thread_position_in_grid]]) {
    const int h = int(position.x) / params.D, d = int(position.x) % params.D;
    const long token = position.y, slot = slots[token];
    if (h >= params.H || slot < 0 || slot >= params.num_slots) {
        return;
    }
    const long from = token / params.L * params.token_strides[0] + h * params.token_strides[1] +
                      token % params.L * params.token_strides[2] + d * params.token_strides[3];
    const long head = slot / params.page_size * params.H + h;
    pages[(head * params.page_size + slot % params.page_size) * params.D + d] = tokens[from];
}

// Quantizes a row as defined in common/int8_rows.h, for any D.
template <typename T>
[[kernel, max_total_threads_per_threadgroup(32)]] void paged_cache_write_int8(
    device const T* tokens [[buffer(0)]], device const int* slots [[buffer(1)]],
    device char* pages [[buffer(2)]], constant const PagedCacheWriteParams& params [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    constexpr float SMALLEST_NORMAL = 0x1p-126f;
    const int h = int(group.x), D = params.D;
    const long token = group.y, slot = slots[token];
    if (slot < 0 || slot >= params.num_slots) {
        return;
    }
    device const T* from = tokens + token / params.L * params.token_strides[0] +
                           h * params.token_strides[1] + token % params.L * params.token_strides[2];
    const long head = slot / params.page_size * params.H + h;
    device char* row =
        pages + (head * params.page_size + slot % params.page_size) * params.row_width;

    float largest = 0;
    bool is_finite = true;
    for (int d = int(lane); d < D; d += 32) {
        const float magnitude = fabs(float(from[d * params.token_strides[3]]));
        is_finite = is_finite && magnitude < INFINITY;
        largest = max(largest, magnitude);
    }
    is_finite = simd_all(is_finite);
    float scale = is_finite ? simd_max(largest) / 127.0f : NAN;
    scale = scale < SMALLEST_NORMAL ? 0.0f : scale;
    const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int d = int(lane); d < D; d += 32) {
        const float x = float(from[d * params.token_strides[3]]);
        row[d] = is_finite ? char(rint(x * inverse)) : char(0);
    }
    if (lane < 4) {
        row[D + int(lane)] = char(as_type<uint>(scale) >> (8 * lane) & 0xff);
    }
}

#define INSTANTIATE_INT8(name, T)                                               \
    template [[host_name("paged_cache_write_int8_" #name)]] [[kernel]] void     \
    paged_cache_write_int8<T>(device const T*, device const int*, device char*, \
                              constant const PagedCacheWriteParams&, uint2, uint);

INSTANTIATE_INT8(float32, float)
INSTANTIATE_INT8(float16, half)
INSTANTIATE_INT8(bfloat16, bfloat)

#define INSTANTIATE(bytes, T)                                                         \
    template [[host_name("paged_cache_write_elements_bytes" #bytes)]] [[kernel]] void \
    paged_cache_write_elements<T>(device const T*, device const int*, device T*,      \
                                  constant const PagedCacheWriteParams&, uint2);

INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
