// Mode "asan": AddressSanitizer checks every access before it happens, even to a thread's local
// arrays; its report becomes a fault.
#include "faults.h"
#include "memory.h"
#include "scheduler.h"

extern "C" {
void* __asan_get_report_pc();
void* __asan_get_report_address();
int __asan_get_report_access_type();  // 1: a write
size_t __asan_get_report_access_size();
const char* __asan_get_report_description();

void __asan_on_error() {
    const void* pc = (const char*)__asan_get_report_pc() - 1;  // -1: within the call
    const void* address = __asan_get_report_address();
    const bool writes = __asan_get_report_access_type() == 1;
    const uint32_t size = (uint32_t)__asan_get_report_access_size();
    msl::report_bad_address(address, writes, size, pc);
    char who[128];
    msl::describe_current_thread(who, sizeof who);
    msl::fail_at("out-of-bounds", pc, "%s %s %u bytes beyond one of its own variables (%s)", who,
                 writes ? "wrote" : "read", size, __asan_get_report_description());
}
}
