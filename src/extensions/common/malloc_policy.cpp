#include "common/malloc_policy.h"

#include <stdlib.h>  // defines __GLIBC__ on glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tiny_llm_ext {

#ifdef __GLIBC__
constexpr int MMAP_THRESHOLD = 32 << 20;  // glibc's maximum; free() unmaps larger blocks
#endif

void configure_malloc() {
#ifdef __GLIBC__
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
#endif
}

mlx::core::allocator::Data malloc_mapped(size_t bytes) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    auto data = mlx::core::allocator::malloc(bytes);
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    return data;
#else
    return mlx::core::allocator::malloc(bytes);
#endif
}

}  // namespace tiny_llm_ext
