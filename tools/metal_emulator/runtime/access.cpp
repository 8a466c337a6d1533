// Race and count mode: clang turns each load and store of a kernel into a call of a function here,
// those of the address sanitizer for operating system kernels, which is made to be replaced.
#include "access.h"

#include <string.h>

#include "fibers.h"
#include "scheduler.h"

namespace msl {

// Which memory it is decides; a thread's own variables and the program's constants are no one's
// business.
static void observe(const void* address, const Access& access) {
    if (on_a_stack(address) || current == nullptr || access.size == 0) {
        return;
    }
    uint64_t offset;
    if (in_threadgroup_memory(address, offset)) {
        if (!in_threadgroup_variable(offset, access.size)) {
            report_bad_address(address, access.writes, access.size, access.pc);
        }
        watch_threadgroup(offset, access);
    } else if (Buffer* buffer = buffer_at(address)) {
        offset = (uint64_t)((const char*)address - buffer->data);  // huge if before the data
        if (offset >= buffer->size || access.size > buffer->size - offset) {
            report_bad_address(address, access.writes, access.size, access.pc);
        }
        watch_device(*buffer, offset, access);
    }
}

}  // namespace msl

using namespace msl;

// The call, not what follows it: that may be of another line.
static const void* call_before(const void* return_address) {
    return (const char*)return_address - 1;
}
#define CALLER call_before(__builtin_return_address(0))

extern "C" {
#define ACCESS_FUNCTIONS(SIZE)                                                              \
    void __asan_load##SIZE##_noabort(void* p) { observe(p, {SIZE, false, false, CALLER}); } \
    void __asan_store##SIZE##_noabort(void* p) { observe(p, {SIZE, true, false, CALLER}); }
ACCESS_FUNCTIONS(1)
ACCESS_FUNCTIONS(2)
ACCESS_FUNCTIONS(4)
ACCESS_FUNCTIONS(8)
ACCESS_FUNCTIONS(16)
void __asan_loadN_noabort(void* p, size_t size) {
    observe(p, {(uint32_t)size, false, false, CALLER});
}
void __asan_storeN_noabort(void* p, size_t size) {
    observe(p, {(uint32_t)size, true, false, CALLER});
}
void* __asan_memcpy(void* to, const void* from, size_t size) {
    observe(from, {(uint32_t)size, false, false, CALLER});
    observe(to, {(uint32_t)size, true, false, CALLER});
    return memcpy(to, from, size);
}
void* __asan_memmove(void* to, const void* from, size_t size) {
    observe(from, {(uint32_t)size, false, false, CALLER});
    observe(to, {(uint32_t)size, true, false, CALLER});
    return memmove(to, from, size);
}
void* __asan_memset(void* to, int value, size_t size) {
    observe(to, {(uint32_t)size, true, false, CALLER});
    return memset(to, value, size);
}
void __asan_handle_no_return() {}

void msl_atomic(const volatile void* address, uint32_t size, bool writes, void* caller) {
    observe((const void*)address, {size, false, true, call_before(caller)});
    if (writes) {
        observe((const void*)address, {size, true, true, call_before(caller)});
    }
}
}
