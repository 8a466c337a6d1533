// paged_cache_write on the GPU: one thread per element. Contract: paged_cache_write.h.
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
    if (h >= params.H || slot < 0 || slot >= params.places) {
        return;
    }
    const long from = token / params.L * params.token_strides[0] + h * params.token_strides[1] +
                      token % params.L * params.token_strides[2] + d * params.token_strides[3];
    const long head = slot / params.page_size * params.H + h;
    pages[(head * params.page_size + slot % params.page_size) * params.D + d] = tokens[from];
}

#define INSTANTIATE(bytes, T)                                                         \
    template [[host_name("paged_cache_write_elements_bytes" #bytes)]] [[kernel]] void \
    paged_cache_write_elements<T>(device const T*, device const int*, device T*,      \
                                  constant const PagedCacheWriteParams&, uint2);

INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
