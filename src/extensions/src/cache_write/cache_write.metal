// cache_write on the GPU: one thread per element. Contract: cache_write.h. The kernels only copy
// elements, so they depend on the element size but not on the dtype.
#include <metal_stdlib>

#include "src/cache_write/cache_write_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void cache_write_elements(device const T* tokens [[buffer(0)]],
                                     device const int* offsets [[buffer(1)]],
                                     device T* cache [[buffer(2)]],
                                     constant const CacheWriteParams& params [[buffer(3)]],
                                     uint2 position [[thread_position_in_grid]]) {
    const long head = position.y;  // index in B·H
    const int b = int(head / params.H), h = int(head % params.H);
    const int l = int(position.x) / params.D, d = int(position.x) % params.D;
    if (l >= params.L || offsets[b] < 0 || offsets[b] > params.C - params.L) {
        return;
    }
    const long from = b * params.token_strides[0] + h * params.token_strides[1] +
                      l * params.token_strides[2] + d * params.token_strides[3];
    cache[(head * params.C + offsets[b] + l) * params.D + d] = tokens[from];
}

#define INSTANTIATE(bytes, T)                                                   \
    template [[host_name("cache_write_elements_bytes" #bytes)]] [[kernel]]      \
    void cache_write_elements<T>(device const T*, device const int*, device T*, \
                                 constant const CacheWriteParams&, uint2);

INSTANTIATE(1, uchar)
INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
INSTANTIATE(8, ulong)
