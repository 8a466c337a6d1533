// Parameters of the kernels in cache_write.metal.
#pragma once

namespace tiny_llm_ext {

struct CacheWriteParams {
    int H, C, L, D;         // sizes: see cache_write.h
    long token_strides[4];  // of B, H, L and D, in elements
};

}  // namespace tiny_llm_ext
