// Memory of a launch: buffers between guard pages, and threadgroup memory, initialized to NaN.
#pragma once
#include "interface.h"

namespace msl {

constexpr uint64_t THREADGROUP_MEMORY_LIMIT = 32768;  // bytes, on every Apple GPU that MLX supports
constexpr uint32_t MAX_BUFFERS = 64;

struct Buffer {
    char* data;
    uint64_t size;
    char *reserved, *reserved_end;  // including guard pages
    bool constant_space, bound;
    char* shadow;  // per-byte state of an instrumented mode
};
extern Buffer buffers[MAX_BUFFERS];

// Maps `size` bytes at `offset` of the file shared with Python so that they end at a guard page.
void map_buffer(uint32_t index, int file, uint64_t offset, uint64_t size, bool constant_space);
// Buffer whose reserved pages contain `address`, or null.
Buffer* buffer_at(const void* address);

void reserve_threadgroup_memory();
// `size` bytes for the kernel's parameter [[threadgroup(index)]], allocated by the first call.
void* dynamic_threadgroup_memory(uint32_t index, uint64_t size);
// Fills threadgroup memory with NaN, at the start of a threadgroup.
void reset_threadgroup_memory();
// Whether `address` is in threadgroup memory; if so, sets its offset.
bool in_threadgroup_memory(const void* address, uint64_t& offset);
// Whether the `size` bytes at `offset` are in one threadgroup variable.
bool in_threadgroup_variable(uint64_t offset, uint64_t size);
constexpr uint64_t ARENA_SIZE = 1 << 20;

// "offset 12 of buffer(1)", or "offset 12 of the threadgroup memory 'tile'" if `buffer` is null.
void describe_place(const Buffer* buffer, uint64_t offset, char* text, size_t size);

// Reports an access beyond the bounds of a buffer or threadgroup variable, and exits. Returns if
// the address is in no buffer's or variable's memory, guard pages included.
void report_bad_address(const void* address, bool writes, uint32_t size, const void* pc);
// Reports a write between a buffer's end and its guard page.
void check_slack();

}  // namespace msl
