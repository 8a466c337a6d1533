#include "common/malloc_policy.h"

#include <stdlib.h>  // defines __GLIBC__, where it is that

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tiny_llm_ext {

void configure_malloc() {
#ifdef __GLIBC__
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that it takes: larger blocks are not kept
#endif
}

}  // namespace tiny_llm_ext
