// Mode "race": stores the last writer of each byte and the readers since then; reports accesses
// that race with these. Two accesses, at least one a write and at least one not atomic, race if
// they are
//   - from different threadgroups, which are unordered, or
//   - from one threadgroup without a threadgroup_barrier for that memory between them, except
//     within one thread, or within one simdgroup if a simdgroup_barrier for that memory separates
//     them.
// Lane order does not matter: every order finds the same races.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "access.h"
#include "counters.h"
#include "faults.h"
#include "scheduler.h"

namespace msl {

Counters counters;
void write_counters() {}

// Accesses of some lanes of one simdgroup between two barriers.
struct Past {
    uint32_t group;  // number of the threadgroup; 0: no access yet
    // Counts of the threadgroup barriers before the access: all, and those for the accessed memory.
    uint32_t executed, epoch;
    // Counts of the simdgroup barriers before the access: all, and those for the accessed memory.
    uint32_t simd_executed, simd_epoch;
    uint32_t simdgroup, lanes;
    uint32_t pc;  // 32 bits suffice, because the program is linked below 4 GiB
    bool atomic;
};

// Two readers from different simdgroups suffice, because any writer's simdgroup differs from that
// of at least one of them. A reader from another threadgroup is stored separately, as no barrier
// orders it.
struct Byte {
    Past writer, readers[2], foreign_reader;
};

static Byte* threadgroup_bytes;

static Byte* reserve_bytes(uint64_t count) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return (Byte*)mmap(nullptr, (count + 1) * sizeof(Byte), PROT_READ | PROT_WRITE, flags, -1, 0);
}

void start_watching() {
    threadgroup_bytes = reserve_bytes(ARENA_SIZE);
    for (Buffer& buffer : buffers) {
        if (buffer.bound) {
            buffer.shadow = (char*)reserve_bytes(buffer.size);
        }
    }
}

struct Place {
    const Buffer* buffer;  // null: threadgroup memory
    uint64_t offset;
};

static Past present(const Access& access, bool device_memory) {
    const Simdgroup& simdgroup = *current->simdgroup;
    return {group_number,
            epochs.executed,
            device_memory ? epochs.device_memory : epochs.threadgroup_memory,
            simdgroup.epoch,
            simdgroup.memory_epochs[device_memory ? 0 : 1],
            current->at.simdgroup,
            1u << current->at.lane,
            (uint32_t)(uintptr_t)access.pc,
            access.atomic};
}

// Whether two accesses race: no barrier orders them, they are not both atomic, and they are not by
// the same lane.
static bool unordered(const Past& past, const Past& now) {
    if (past.group == 0 || (past.atomic && now.atomic)) {
        return false;
    }
    if (past.group != now.group) {
        return true;
    }
    if (past.epoch != now.epoch) {
        return false;
    }
    if (past.simdgroup != now.simdgroup) {
        return true;
    }
    return past.simd_epoch == now.simd_epoch && (past.lanes & ~now.lanes) != 0;
}

[[noreturn]] static void report(const Place& place, const Access& access, bool past_writes,
                                const Past& past, const Past& now) {
    char who[128], what[96], other[96], text[640];
    describe_current_thread(who, sizeof who);
    describe_place(place.buffer, place.offset, what, sizeof what);
    const bool same_group = past.group == now.group;
    const uint32_t lanes = past.lanes & ~now.lanes ? past.lanes & ~now.lanes : past.lanes;
    const uint32_t lane = (uint32_t)__builtin_ctz(lanes);
    snprintf(other, sizeof other, same_group ? "thread %u" : "a thread of another threadgroup",
             past.simdgroup * LANES + lane);
    const bool met = past.executed != now.executed ||
                     (past.simdgroup == now.simdgroup && past.simd_executed != now.simd_executed);
    const bool missing_fence = same_group && met;
    const char* why = !same_group ? "threadgroups run at the same time, and nothing orders them"
                      : missing_fence
                          ? "the barrier between the two does not name this memory in its flags"
                          : "no barrier separates the two";
    snprintf(text, sizeof text, "%s %s %s, which %s %s at {other}; %s", who,
             access.writes ? "writes" : "reads", what, other, past_writes ? "wrote" : "read", why);
    fail(missing_fence ? "missing-fence" : "race", text, {}, access.pc, (void*)(uintptr_t)past.pc);
}

static void record_reader(Byte& byte, const Past& now) {
    Past& last = byte.readers[0];
    if (last.group != 0 && last.group != now.group) {
        byte.foreign_reader = last;
        byte.readers[1] = {};
    } else if (last.group == now.group && last.simdgroup == now.simdgroup) {
        const bool same_epochs = last.epoch == now.epoch && last.simd_epoch == now.simd_epoch;
        const uint32_t lanes = same_epochs ? last.lanes | now.lanes : now.lanes;
        const bool atomic = (last.atomic || !same_epochs) && now.atomic;
        last = now;
        last.lanes = lanes;
        last.atomic = atomic;
        return;
    } else {
        byte.readers[1] = last;
    }
    last = now;
}

static void watch(Byte& byte, const Place& place, const Access& access, const Past& now) {
    if (unordered(byte.writer, now)) {
        report(place, access, true, byte.writer, now);
    }
    if (!access.writes) {
        record_reader(byte, now);
        return;
    }
    const Past* readers[] = {&byte.readers[0], &byte.readers[1], &byte.foreign_reader};
    for (const Past* reader : readers) {
        if (unordered(*reader, now)) {
            report(place, access, false, *reader, now);
        }
    }
    byte.writer = now;
}

void watch_device(Buffer& buffer, uint64_t offset, const Access& access) {
    if (buffer.constant_space) {
        return;
    }
    const Past now = present(access, true);
    Byte* bytes = (Byte*)buffer.shadow + offset;
    for (uint32_t i = 0; i < access.size; ++i) {
        watch(bytes[i], {&buffer, offset + i}, access, now);
    }
}

void watch_threadgroup(uint64_t offset, const Access& access) {
    const Past now = present(access, false);
    for (uint32_t i = 0; i < access.size; ++i) {
        Byte& byte = threadgroup_bytes[offset + i];
        if (byte.writer.group != group_number && byte.readers[0].group != group_number) {
            byte = {};  // forgets an earlier threadgroup, which had other memory
        }
        if (!access.writes && byte.writer.group == 0) {
            char who[128], what[96];
            describe_current_thread(who, sizeof who);
            describe_place(nullptr, offset + i, what, sizeof what);
            fail_at("uninitialised-threadgroup-read", access.pc,
                    "%s reads %s, which no thread of its threadgroup has written", who, what);
        }
        watch(byte, {nullptr, offset + i}, access, now);
    }
}

}  // namespace msl

void msl_matrix_multiply_accumulated() {}
