#include "scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "counters.h"
#include "faults.h"
#include "memory.h"

namespace msl {

Thread* current;
uint32_t group_number;
Epochs epochs;

static Thread threads[MAX_THREADS];
static Simdgroup simdgroups[MAX_THREADS / LANES];
static uint32_t thread_count, simdgroup_count, alive_count;
static Context scheduler;
static Order order;
static uint32_t random_state;
static const Kernel* kernel;
static const Bindings* bindings;

static uint32_t bit(const Thread& thread) { return 1u << thread.at.lane; }

static uint32_t next_random(uint32_t& state) {  // xorshift32
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

// ---- Selection of the next thread ----

// Next ready lane after `lane` in the requested order.
static uint32_t next_lane(Simdgroup& simdgroup, uint32_t lane) {
    uint32_t ready = simdgroup.ready;
    if (order == Order::FORWARD) {
        uint32_t above = lane == LANES - 1 ? 0 : ready & ~((2u << lane) - 1);
        return (uint32_t)__builtin_ctz(above ? above : ready);
    }
    if (order == Order::REVERSE) {
        uint32_t below = ready & ((1u << lane) - 1);
        return LANES - 1 - (uint32_t)__builtin_clz(below ? below : ready);
    }
    uint32_t skip = next_random(simdgroup.random) % (uint32_t)__builtin_popcount(ready);
    for (; skip > 0; --skip) {
        ready &= ready - 1;
    }
    return (uint32_t)__builtin_ctz(ready);
}

static void resume(Context& from, Thread& thread) {
    current = &thread;
    switch_context(from, thread.context);
}

[[noreturn]] static void fail_stack_overflow(const Thread& thread) {
    char who[128], text[256];
    describe_current_thread(who, sizeof who);
    snprintf(text, sizeof text, "%s has more than %zu KiB of variables", who, STACK_SIZE >> 10);
    fail("stack-overflow", text, thread.site);
}

// Yields to the next ready lane of the simdgroup, else to the scheduler.
static void leave() {
    Thread& thread = *current;
    Simdgroup& simdgroup = *thread.simdgroup;
    if (stack_overflowed(thread.at.thread_index)) {
        fail_stack_overflow(thread);
    }
    if (simdgroup.ready) {
        Thread& next = simdgroup.threads[next_lane(simdgroup, thread.at.lane)];
        if (&next != &thread) {
            resume(thread.context, next);
        }
    } else {
        switch_context(thread.context, scheduler);
    }
}

static void thread_main() {
    kernel->call(*bindings, current->at);
    Simdgroup& simdgroup = *current->simdgroup;
    simdgroup.alive &= ~bit(*current);
    simdgroup.ready &= ~bit(*current);
    --alive_count;
    leave();
    abort();  // a thread that has returned is never resumed
}

// ---- Deadlock reports ----

static bool same(const Site& x, const Site& y) {
    return x.line == y.line && x.column == y.column && strcmp(x.file, y.file) == 0;
}
static bool wait_together(const Thread& x, const Thread& y) {
    return x.waiting_for == y.waiting_for && same(x.site, y.site);
}

// Appends to a fixed-size buffer.
struct Text {
    char characters[900];
    size_t length = 0;
    __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
        va_list arguments;
        va_start(arguments, format);
        int n = vsnprintf(characters + length, sizeof characters - length, format, arguments);
        va_end(arguments);
        length +=
            (size_t)n < sizeof characters - length ? (size_t)n : sizeof characters - length - 1;
    }
};

// "0–15, 17" for a mask of lanes.
static void add_lanes(Text& text, uint32_t lanes) {
    const char* separator = "";
    for (uint32_t first = 0; first < LANES; ++first) {
        if (!(lanes >> first & 1)) {
            continue;
        }
        uint32_t last = first;
        while (last + 1 < LANES && (lanes >> (last + 1) & 1)) {
            ++last;
        }
        text.add(first == last ? "%s%u" : "%s%u–%u", separator, first, last);
        separator = ", ";
        first = last;
    }
}

// Lists the lanes that wait, grouped by source location, and those that have returned.
static void add_whereabouts(Text& text, const Simdgroup& simdgroup) {
    uint32_t waiting = simdgroup.meeting | simdgroup.at_barrier;
    while (waiting) {
        const Thread& first = simdgroup.threads[__builtin_ctz(waiting)];
        uint32_t together = 0;
        for (uint32_t lane = 0; lane < LANES; ++lane) {
            if (waiting >> lane & 1 && wait_together(simdgroup.threads[lane], first)) {
                together |= 1u << lane;
            }
        }
        text.add("; lanes ");
        add_lanes(text, together);
        text.add(" wait in %s of line %u", first.waiting_for, first.site.line);
        waiting &= ~together;
    }
    if (uint32_t returned = simdgroup.all & ~simdgroup.alive) {
        text.add("; lanes ");
        add_lanes(text, returned);
        text.add(" have returned");
    }
}

void describe_current_thread(char* text, size_t size) {
    if (current == nullptr) {
        snprintf(text, size, "no thread");
        return;
    }
    const Position& at = current->at;
    snprintf(text, size, "thread (%u, %u, %u) of threadgroup (%u, %u, %u)", at.thread_in_group[0],
             at.thread_in_group[1], at.thread_in_group[2], at.group_in_grid[0], at.group_in_grid[1],
             at.group_in_grid[2]);
}

[[noreturn]] static void fail_divergent_simd(const Thread& thread) {
    Text text;
    const Position& at = thread.at;
    text.add("%s is not reached by all lanes of simdgroup %u in threadgroup (%u, %u, %u)",
             thread.waiting_for, at.simdgroup, at.group_in_grid[0], at.group_in_grid[1],
             at.group_in_grid[2]);
    if (thread.simdgroup->all != ~0u) {
        text.add(", which has only %d threads", __builtin_popcount(thread.simdgroup->all));
    }
    add_whereabouts(text, *thread.simdgroup);
    fail("divergent-simd", text.characters, thread.site);
}

[[noreturn]] static void fail_divergent_barrier(const Thread& first) {
    Text text;
    const Position& at = first.at;
    text.add("threadgroup_barrier is not reached by all threads of threadgroup (%u, %u, %u)",
             at.group_in_grid[0], at.group_in_grid[1], at.group_in_grid[2]);
    uint32_t here = 0, elsewhere = 0, returned = 0;
    const Thread* other = nullptr;
    for (uint32_t i = 0; i < thread_count; ++i) {
        const Thread& thread = threads[i];
        if (!(thread.simdgroup->alive & bit(thread))) {
            ++returned;
        } else if (same(thread.site, first.site)) {
            ++here;
        } else {
            ++elsewhere;
            other = &thread;
        }
    }
    text.add(": %u of %u wait here (thread %u is one)", here, thread_count, at.thread_index);
    if (other != nullptr) {
        text.add("; %u wait at the barrier of line %u (thread %u is one)", elsewhere,
                 other->site.line, other->at.thread_index);
    }
    if (returned > 0) {
        text.add("; %u have returned", returned);
    }
    fail("divergent-barrier", text.characters, first.site);
}

// ---- Synchronization ----

// Releases the lanes waiting in a simd operation after all other lanes have returned.
static void meet_without_returned(Simdgroup& simdgroup) {
    Thread& first = simdgroup.threads[__builtin_ctz(simdgroup.meeting)];
    const bool undefined = first.meeting == Meeting::MATRIX || first.meeting == Meeting::BARRIER;
    if (simdgroup.at_different_sites || simdgroup.meeting != simdgroup.alive || undefined) {
        fail_divergent_simd(first);
    }
    first.to_compute = simdgroup.meeting;
    simdgroup.ready = simdgroup.meeting;
    simdgroup.meeting = 0;
    count_simd_operation();
    resume(scheduler, first);
}

static void release_barrier() {
    const Thread* first = nullptr;
    uint32_t flags = 0, waiting = 0;
    bool divergent = false;
    for (uint32_t i = 0; i < thread_count; ++i) {
        const Thread& thread = threads[i];
        if (thread.simdgroup->at_barrier & bit(thread)) {
            first = first == nullptr ? &thread : first;
            divergent = divergent || !same(thread.site, first->site);
            flags |= thread.flags;
            ++waiting;
        }
    }
    if (divergent || waiting < thread_count) {
        fail_divergent_barrier(*first);
    }
    for (uint32_t i = 0; i < simdgroup_count; ++i) {
        simdgroups[i].ready = simdgroups[i].at_barrier;
        simdgroups[i].at_barrier = 0;
    }
    ++epochs.executed;
    epochs.device_memory += flags & 1;
    epochs.threadgroup_memory += flags >> 1 & 1;
    count_barrier();
}

// No thread is ready: completes one synchronization, or reports a deadlock.
static void resolve() {
    for (uint32_t i = 0; i < simdgroup_count; ++i) {
        if (simdgroups[i].meeting) {
            meet_without_returned(simdgroups[i]);
            return;
        }
    }
    release_barrier();
}

// ---- Threadgroups ----

static void run_threadgroup() {
    uint32_t turns[MAX_THREADS / LANES];
    for (uint32_t i = 0; i < simdgroup_count; ++i) {
        turns[i] = order == Order::REVERSE ? simdgroup_count - 1 - i : i;
    }
    while (alive_count > 0) {
        for (uint32_t i = simdgroup_count - 1; order == Order::RANDOM && i > 0; --i) {
            const uint32_t j = next_random(random_state) % (i + 1), turn = turns[i];
            turns[i] = turns[j];
            turns[j] = turn;
        }
        bool progress = false;
        for (uint32_t i = 0; i < simdgroup_count; ++i) {
            Simdgroup& simdgroup = simdgroups[turns[i]];
            if (simdgroup.ready) {
                progress = true;
                const uint32_t before_first = order == Order::REVERSE ? 0 : LANES - 1;
                resume(scheduler, simdgroup.threads[next_lane(simdgroup, before_first)]);
            }
        }
        if (!progress) {
            resolve();
        }
    }
}

// Prepares the threads of the threadgroup at `group`, which may be smaller at the grid's edges.
static void start_threadgroup(const Grid& grid, const uint32_t groups[3], const uint32_t group[3]) {
    Position shared{};
    for (int d = 0; d < 3; ++d) {
        const uint32_t start = group[d] * grid.group[d];
        const bool cut = grid.in_threads && start + grid.group[d] > grid.size[d];
        shared.group_in_grid[d] = group[d];
        shared.groups_in_grid[d] = groups[d];
        shared.group_size[d] = cut ? grid.size[d] - start : grid.group[d];
        shared.nominal_group_size[d] = grid.group[d];
        shared.grid_size[d] = grid.in_threads ? grid.size[d] : grid.size[d] * grid.group[d];
    }
    const uint32_t* size = shared.group_size;
    thread_count = alive_count = size[0] * size[1] * size[2];
    simdgroup_count = (thread_count + LANES - 1) / LANES;
    shared.simdgroups = simdgroup_count;
    shared.simd_width = LANES;
    ++group_number;
    epochs = {1, 1, 1};

    for (uint32_t i = 0; i < simdgroup_count; ++i) {
        Simdgroup& simdgroup = simdgroups[i];
        const uint32_t lanes = thread_count - i * LANES;
        simdgroup.all = lanes >= LANES ? ~0u : (1u << lanes) - 1;
        simdgroup.alive = simdgroup.ready = simdgroup.all;
        simdgroup.meeting = simdgroup.at_barrier = 0;
        simdgroup.epoch = simdgroup.memory_epochs[0] = simdgroup.memory_epochs[1] = 1;
        simdgroup.random = next_random(random_state);
        simdgroup.threads = &threads[i * LANES];
    }
    for (uint32_t i = 0; i < thread_count; ++i) {
        Thread& thread = threads[i];
        thread.simdgroup = &simdgroups[i / LANES];
        Position& at = thread.at = shared;
        at.thread_in_group[0] = i % size[0];
        at.thread_in_group[1] = i / size[0] % size[1];
        at.thread_in_group[2] = i / size[0] / size[1];
        for (int d = 0; d < 3; ++d) {
            at.thread_in_grid[d] = group[d] * grid.group[d] + at.thread_in_group[d];
        }
        at.thread_index = i;
        at.simdgroup = i / LANES;
        at.lane = i % LANES;
        at.quadgroup = i / 4;
        at.quad_lane = i % 4;
        prepare(thread.context, i, thread_main);
    }
}

void run_grid(const Kernel& kernel_, const Bindings& bindings_, const Grid& grid, Order order_,
              uint32_t seed) {
    kernel = &kernel_;
    bindings = &bindings_;
    order = order_;
    random_state = seed * 2654435761u + 1;
    random_state = random_state == 0 ? 1 : random_state;  // 0 is a fixed point of xorshift
    uint32_t groups[3];
    for (int d = 0; d < 3; ++d) {
        groups[d] =
            grid.in_threads ? (grid.size[d] + grid.group[d] - 1) / grid.group[d] : grid.size[d];
    }
    const uint64_t total = (uint64_t)groups[0] * groups[1] * groups[2];
    for (uint64_t i = 0; i < total; ++i) {
        // Reverse order exposes dependence on the threadgroup order.
        const uint64_t number = order == Order::REVERSE ? total - 1 - i : i;
        const uint32_t group[3] = {(uint32_t)(number % groups[0]),
                                   (uint32_t)(number / groups[0] % groups[1]),
                                   (uint32_t)(number / groups[0] / groups[1])};
        start_threadgroup(grid, groups, group);
        reset_threadgroup_memory();
        count_threads(thread_count);
        run_threadgroup();
    }
    current = nullptr;
}

}  // namespace msl

// ---- Entry points for kernels ----

using namespace msl;

uint32_t msl_meet(Meeting meeting, const char* name, Site site) {
    Thread& thread = *current;
    Simdgroup& simdgroup = *thread.simdgroup;
    thread.site = site;
    thread.waiting_for = name;
    thread.meeting = meeting;
    thread.to_compute = 0;
    if (simdgroup.meeting == 0) {
        simdgroup.at_different_sites = false;
    } else {
        const Thread& other = simdgroup.threads[__builtin_ctz(simdgroup.meeting)];
        simdgroup.at_different_sites |= !wait_together(thread, other);
    }
    simdgroup.meeting |= bit(thread);
    simdgroup.ready &= ~bit(thread);
    const bool partial_matrix = meeting == Meeting::MATRIX && simdgroup.all != ~0u;
    if (simdgroup.meeting == simdgroup.all && !simdgroup.at_different_sites && !partial_matrix) {
        simdgroup.ready = simdgroup.meeting;
        simdgroup.meeting = 0;
        count_simd_operation();
        return simdgroup.ready;
    }
    leave();
    return thread.to_compute;
}

Exchange* msl_exchange() { return &current->simdgroup->exchange; }

uint32_t msl_lane() { return current->at.lane; }

void msl_threadgroup_barrier(uint32_t flags, Site site) {
    Thread& thread = *current;
    thread.site = site;
    thread.waiting_for = "threadgroup_barrier";
    thread.flags = flags;
    thread.simdgroup->at_barrier |= bit(thread);
    thread.simdgroup->ready &= ~bit(thread);
    leave();
}

void msl_simdgroup_barrier(uint32_t flags, Site site) {
    if (msl_meet(Meeting::BARRIER, "simdgroup_barrier", site)) {  // true for the last lane
        Simdgroup& simdgroup = *current->simdgroup;
        ++simdgroup.epoch;
        simdgroup.memory_epochs[0] += flags & 1;
        simdgroup.memory_epochs[1] += flags >> 1 & 1;
    }
}
