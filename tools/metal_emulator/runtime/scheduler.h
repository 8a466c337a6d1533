// Runs a threadgroup: threads are fibers that synchronize in simd operations and barriers.
#pragma once
#include "fibers.h"
#include "interface.h"

namespace msl {

constexpr uint32_t MAX_THREADS = 1024;

enum class Order : uint32_t { FORWARD, REVERSE, RANDOM };

// Counts of the threadgroup barriers that the current threadgroup has executed: `executed` counts
// all, the other fields those with device or threadgroup memory in their flags. A barrier orders
// accesses only to the memory in its flags. Each count starts at 1.
struct Epochs {
    uint32_t executed, device_memory, threadgroup_memory;
};

struct Simdgroup;

struct Thread {
    Context context;
    Simdgroup* simdgroup;
    Position at;
    // Location and kind of a pending wait.
    Site site;
    const char* waiting_for;
    Meeting meeting;
    uint32_t flags;       // memory flags of the barrier
    uint32_t to_compute;  // for the last lane to arrive: mask of the participating lanes
};

struct Simdgroup {
    uint32_t all, alive, ready, meeting, at_barrier;  // masks of lanes
    bool at_different_sites;
    // Counts of the executed simdgroup barriers: all, and those with (device, threadgroup) memory
    // in their flags, from 1.
    uint32_t epoch, memory_epochs[2];
    uint32_t random;
    Thread* threads;
    Exchange exchange;
};

struct Grid {
    uint32_t size[3];  // threadgroups, or threads if `in_threads`
    uint32_t group[3];
    bool in_threads;
};

// Runs all threadgroups sequentially.
void run_grid(const Kernel& kernel, const Bindings& bindings, const Grid& grid, Order order,
              uint32_t seed);

// Current thread, or null between threadgroups.
extern Thread* current;
// Number of the current threadgroup, from 1, and the barriers that it has executed.
extern uint32_t group_number;
extern Epochs epochs;

// "thread (3, 0, 0) of threadgroup (0, 1, 0)", or "no thread".
void describe_current_thread(char* text, size_t size);

}  // namespace msl
