// An array of any strides into row-major order, an element a thread.
#include <metal_stdlib>

#include "common/metal_copy_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void copy_strided(device const T* source [[buffer(0)]], device T* copy [[buffer(1)]],
                             constant const CopyParams& params [[buffer(2)]],
                             uint index [[thread_position_in_grid]]) {
    if (long(index) >= params.size) {
        return;
    }
    long rest = index, from = 0;
    for (int dim = params.dims - 1; dim >= 0; dim--) {
        from += rest % params.shape[dim] * params.strides[dim];
        rest /= params.shape[dim];
    }
    copy[index] = source[from];
}

#define INSTANTIATE(bytes, T)                                                                  \
    template [[host_name("metal_copy_strided_bytes" #bytes)]] [[kernel]] void copy_strided<T>( \
        device const T*, device T*, constant const CopyParams&, uint);

INSTANTIATE(1, uchar)
INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
INSTANTIATE(8, ulong)
