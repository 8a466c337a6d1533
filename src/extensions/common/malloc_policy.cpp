#include "common/malloc_policy.h"

#include <stdlib.h>  // defines __GLIBC__ on glibc

#include <stdexcept>
#include <string>

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
    struct LowThreshold {  // the destructor restores the threshold even after an exception
        LowThreshold() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }
        ~LowThreshold() { mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD); }
    } low_threshold;
#endif
    auto data = mlx::core::allocator::malloc(bytes);
    if (bytes > 0 && data.buffer().ptr() == nullptr) {
        throw std::runtime_error("Cannot allocate " + std::to_string(bytes) + " bytes.");
    }
    return data;
}

}  // namespace tiny_llm_ext
