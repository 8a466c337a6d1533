// Parameters of the kernels in paged_cache_write.metal.
#pragma once

namespace tiny_llm_ext {

struct PagedCacheWriteParams {
    int H, L, D, page_size;
    int row_width;          // elements per page row: D, or at least D + 4 for 8-bit rows
    long tokens;            // B·L
    long num_slots;         // P·page_size
    long token_strides[4];  // of B, H, L and D, in elements
};

}  // namespace tiny_llm_ext
