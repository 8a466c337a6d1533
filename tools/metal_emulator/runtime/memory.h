// The memory of a launch: buffers between guard pages, threadgroup memory that starts as NaN.
#pragma once
#include "interface.h"

namespace msl {

constexpr uint64_t THREADGROUP_MEMORY_LIMIT = 32768;  // of every Apple GPU that MLX runs on
constexpr uint32_t MAX_BUFFERS = 64;

struct Buffer {
    char* data;
    uint64_t size;
    char *reserved, *reserved_end;  // with the guard pages
    bool constant_space, bound;
    char* shadow;  // what an instrumented mode knows of each byte
};
extern Buffer buffers[MAX_BUFFERS];

// Maps `size` bytes at `offset` of the file shared with Python so that they end at a guard page.
void map_buffer(uint32_t index, int file, uint64_t offset, uint64_t size, bool constant_space);
// The buffer whose reserved pages hold `address`, or null.
Buffer* buffer_at(const void* address);

void reserve_threadgroup_memory();
// [[threadgroup(index)]] of a launch.
void* dynamic_threadgroup_memory(uint32_t index, uint64_t size);
// A new threadgroup: what the last one wrote is gone.
void forget_threadgroup_memory();
// Whether `address` is in threadgroup memory, and then its offset in it.
bool in_threadgroup_memory(const void* address, uint64_t& offset);
// Whether all of it belongs to one threadgroup variable.
bool in_threadgroup_variable(uint64_t offset, uint64_t size);
constexpr uint64_t ARENA_SIZE = 1 << 20;

// "offset 12 of buffer(1)", or "offset 12 of the threadgroup memory 'tile'" if `buffer` is null.
void describe_place(const Buffer* buffer, uint64_t offset, char* text, size_t size);

// Reports an access outside of a buffer's or threadgroup variable's bytes; returns if the address
// belongs to neither.
void report_bad_address(const void* address, bool writes, uint32_t size, const void* pc);
// Reports a write into the few bytes between a buffer's end and its guard page.
void check_slack();

}  // namespace msl
