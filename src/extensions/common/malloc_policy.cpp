#include "common/malloc_policy.h"

#include <stdlib.h>  // defines __GLIBC__ on glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tiny_llm_ext {

void configure_malloc() {
#ifdef __GLIBC__
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // glibc's maximum; free() unmaps larger blocks
#endif
}

}  // namespace tiny_llm_ext
