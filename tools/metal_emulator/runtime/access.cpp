// Hooks of KernelAddressSanitizer, which modes "race" and "count" define: clang replaces each load
// and store of a kernel with a call to one of these functions.
#include "access.h"

#include <string.h>

#include "fibers.h"
#include "scheduler.h"

namespace msl {

// Dispatches on the memory region; ignores a thread's local variables and constants.
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
        // Wraps to a huge value if `address` is before the buffer.
        offset = (uint64_t)((const char*)address - buffer->data);
        if (offset >= buffer->size || access.size > buffer->size - offset) {
            report_bad_address(address, access.writes, access.size, access.pc);
        }
        watch_device(*buffer, offset, access);
    }
}

}  // namespace msl

using namespace msl;

// Address within the call instruction, because the return address may belong to the next line.
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
