#include "memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "faults.h"
#include "scheduler.h"

// Defined (not null) if the kernel was compiled with AddressSanitizer.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
}

namespace msl {

Buffer buffers[MAX_BUFFERS];

constexpr uint64_t PAGE = 4096;
// Alignment of buffers, as in Metal. A buffer may thus end up to 15 bytes before the guard page;
// these bytes hold a canary pattern.
constexpr uint64_t ALIGNMENT = 16;
constexpr unsigned char SLACK = 0xa5;
// Red zone between threadgroup variables, so that instrumented modes detect overruns.
constexpr uint64_t RED_ZONE = 64;

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static void poison(void* start, uint64_t size) {
    if (__asan_poison_memory_region) {
        __asan_poison_memory_region(start, size);
    }
}
static void unpoison(void* start, uint64_t size) {
    if (__asan_unpoison_memory_region) {
        __asan_unpoison_memory_region(start, size);
    }
}

void map_buffer(uint32_t index, int file, uint64_t offset, uint64_t size, bool constant_space) {
    const uint64_t used = round_up(size, ALIGNMENT), mapped = round_up(used > 0 ? used : 1, PAGE);
    const int reserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* reserved = (char*)mmap(nullptr, mapped + 2 * PAGE, PROT_NONE, reserve, -1, 0);
    char* start = reserved + PAGE;
    mmap(start, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, (off_t)offset);
    Buffer& buffer = buffers[index];
    buffer = {start + mapped - used, size, reserved, start + mapped + PAGE,
              constant_space,        true, nullptr};
    memset(buffer.data + size, SLACK, used - size);
    poison(start, mapped);
    unpoison(buffer.data, size);
}

Buffer* buffer_at(const void* address_) {
    static Buffer* last = buffers;  // most accesses hit the same buffer as the previous one
    const char* address = (const char*)address_;
    if (last->bound && address >= last->reserved && address < last->reserved_end) {
        return last;
    }
    for (Buffer& buffer : buffers) {
        if (buffer.bound && address >= buffer.reserved && address < buffer.reserved_end) {
            last = &buffer;
            return last;
        }
    }
    return nullptr;
}

// ---- Threadgroup memory ----

struct Variable {
    const char* name;
    uint32_t id;
    uint64_t offset, size;
    uint32_t group_number;  // threadgroup for which the variable was last reset
};
static Variable variables[256];
static uint32_t variable_count;
static char* arena;
static uint64_t arena_used, limit_used;

void reserve_threadgroup_memory() {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = (char*)mmap(nullptr, ARENA_SIZE, PROT_READ | PROT_WRITE, flags, -1, 0);
}

bool in_threadgroup_memory(const void* address, uint64_t& offset) {
    offset = (uint64_t)((const char*)address - arena);
    return offset < ARENA_SIZE;
}

bool in_threadgroup_variable(uint64_t offset, uint64_t size) {
    for (uint32_t i = 0; i < variable_count; ++i) {
        const Variable& v = variables[i];
        if (offset >= v.offset && offset + size <= v.offset + v.size) {
            return true;
        }
    }
    return false;
}

static Variable& variable(uint32_t id, const char* name, uint64_t size, uint64_t alignment,
                          Site site) {
    for (uint32_t i = 0; i < variable_count; ++i) {
        if (variables[i].id == id) {
            return variables[i];
        }
    }
    limit_used += round_up(size, 16);
    if (limit_used > THREADGROUP_MEMORY_LIMIT) {
        char text[256];
        snprintf(text, sizeof text,
                 "with '%s', the kernel uses %llu bytes of threadgroup memory; a GPU has %llu",
                 name, (unsigned long long)limit_used,
                 (unsigned long long)THREADGROUP_MEMORY_LIMIT);
        fail("threadgroup-memory-limit", text, site);
    }
    if (arena_used == 0) {
        poison(arena, ARENA_SIZE);
        arena_used = RED_ZONE;
    }
    Variable& v = variables[variable_count++];
    v = {name, id, round_up(arena_used, alignment < 16 ? 16 : alignment), size, 0};
    arena_used = v.offset + size + RED_ZONE;
    unpoison(arena + v.offset, size);
    return v;
}

// Sets all bits: NaN in every float type, and an obviously wrong index.
static void clear(Variable& v) {
    if (v.group_number != group_number) {
        v.group_number = group_number;
        memset(arena + v.offset, 0xff, v.size);
    }
}

void* dynamic_threadgroup_memory(uint32_t index, uint64_t size) {
    static char names[32][24];
    char* name = names[index % 32];
    snprintf(name, sizeof names[0], "[[threadgroup(%u)]]", index);
    return arena + variable(~index, name, size, 16, {}).offset;
}

void reset_threadgroup_memory() {
    for (uint32_t i = 0; i < variable_count; ++i) {
        clear(variables[i]);
    }
}

// ---- Invalid accesses ----

void describe_place(const Buffer* buffer, uint64_t offset, char* text, size_t size) {
    if (buffer != nullptr) {
        snprintf(text, size, "offset %llu of buffer(%td)", (unsigned long long)offset,
                 buffer - buffers);
        return;
    }
    for (uint32_t i = 0; i < variable_count; ++i) {
        const Variable& v = variables[i];
        if (offset >= v.offset && offset < v.offset + v.size) {
            snprintf(text, size, "offset %llu of the threadgroup memory '%s'",
                     (unsigned long long)(offset - v.offset), v.name);
            return;
        }
    }
    snprintf(text, size, "threadgroup memory");
}

void report_bad_address(const void* address, bool writes, uint32_t size, const void* pc) {
    char who[128], what[48];
    describe_current_thread(who, sizeof who);
    snprintf(what, sizeof what,
             size == 0 ? "accessed" : (writes ? "wrote %u bytes" : "read %u bytes"), size);
    uint64_t offset;
    if (in_threadgroup_memory(address, offset)) {
        const Variable* nearest = nullptr;
        for (uint32_t i = 0; i < variable_count; ++i) {
            const Variable& v = variables[i];
            if (offset + RED_ZONE >= v.offset &&
                (nearest == nullptr || v.offset > nearest->offset)) {
                nearest = offset >= v.offset || nearest == nullptr ? &v : nearest;
            }
        }
        if (nearest != nullptr) {
            fail_at("out-of-bounds", pc,
                    "%s %s at offset %lld of the threadgroup memory '%s', which has %llu bytes",
                    who, what, (long long)offset - (long long)nearest->offset, nearest->name,
                    (unsigned long long)nearest->size);
        }
        fail_at("out-of-bounds", pc, "%s %s of unallocated threadgroup memory", who, what);
    }
    if (const Buffer* buffer = buffer_at(address)) {
        fail_at("out-of-bounds", pc, "%s %s at offset %lld of buffer(%td), which has %llu bytes",
                who, what, (long long)((const char*)address - buffer->data), buffer - buffers,
                (unsigned long long)buffer->size);
    }
}

void check_slack() {
    for (const Buffer& buffer : buffers) {
        for (uint64_t i = buffer.size; buffer.bound && i < round_up(buffer.size, ALIGNMENT); ++i) {
            if ((unsigned char)buffer.data[i] != SLACK) {
                char text[160];
                snprintf(
                    text, sizeof text,
                    "a thread wrote beyond the end of buffer(%td), at offset %llu of %llu bytes",
                    &buffer - buffers, (unsigned long long)i, (unsigned long long)buffer.size);
                fail("out-of-bounds", text, {});
            }
        }
    }
}

}  // namespace msl

void* msl_threadgroup_variable(uint32_t id, const char* name, uint64_t size, uint64_t alignment,
                               msl::Site site) {
    msl::Variable& v = msl::variable(id, name, size, alignment, site);
    msl::clear(v);
    return msl::arena + v.offset;
}
