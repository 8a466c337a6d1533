// Main program of a compiled kernel library. Reads launches from standard input and runs each in a
// child process, so that a crash does not affect later launches:
//
//   Python  ── Launch, buffers, threadgroup memory ──▶  server  ── fork ──▶  child
//           ◀── "fault…" or "counters…", then "end" ──                       │ buffers: one file,
//           ◀──────────────── results in the shared file ────────────────────┘ mapped by both
//
// `program describe` prints the table of kernels instead.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access.h"
#include "arithmetic.h"
#include "counters.h"
#include "faults.h"
#include "memory.h"
#include "scheduler.h"

using namespace msl;

// Wire format, packed in Python by process.py.
struct Launch {
    uint32_t kernel, order, seed, in_threads;
    uint32_t grid[3], group[3];
    uint32_t buffer_count, memory_count;
};
struct BoundBuffer {
    uint64_t index, offset, size, constant_space;
    uint64_t lead;  // offset of the kernel's pointer in the buffer
};
struct BoundMemory {
    uint64_t index, size;
};

static bool read_all(void* data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(0, (char*)data + done, size - done);
        if (n <= 0) {
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static void describe() {
    for (uint32_t i = 0; i < msl_kernel_count; ++i) {
        const Kernel& kernel = msl_kernels[i];
        printf("kernel %s %u\n", kernel.name, kernel.max_threads);
        for (uint32_t j = 0; j < kernel.parameter_count; ++j) {
            const Parameter& p = kernel.parameters[j];
            if (p.binding != Binding::POSITION) {
                printf("parameter %s %s %u %c %u %u %d %d %d %d\n", p.name,
                       p.binding == Binding::BUFFER ? "buffer" : "threadgroup", p.index, p.element,
                       p.element_size, p.size, p.reference, p.writes, p.constant_space, p.optional);
            }
        }
    }
}

[[noreturn]] static void run(const Launch& launch, const BoundBuffer* bound,
                             const BoundMemory* memory, int file) {
    catch_signals();
    Bindings bindings{};
    for (uint32_t i = 0; i < launch.buffer_count; ++i) {
        const BoundBuffer& b = bound[i];
        map_buffer((uint32_t)b.index, file, b.offset, b.size, b.constant_space != 0);
        bindings.buffers[b.index] = buffers[b.index].data + b.lead;
    }
    for (uint32_t i = 0; i < launch.memory_count; ++i) {
        const uint32_t index = (uint32_t)memory[i].index;
        bindings.threadgroup_memory[index] = dynamic_threadgroup_memory(index, memory[i].size);
    }
    start_watching();
    Grid grid{};
    memcpy(grid.size, launch.grid, sizeof grid.size);
    memcpy(grid.group, launch.group, sizeof grid.group);
    grid.in_threads = launch.in_threads != 0;
    begin_arithmetic(launch.seed);
    run_grid(msl_kernels[launch.kernel], bindings, grid, (Order)launch.order, launch.seed);
    check_slack();
    write_counters();
    _exit(0);
}

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "describe") == 0) {
        describe();
        return 0;
    }
    const int file = argc == 2 ? atoi(argv[1]) : -1;
    reserve_stacks(MAX_THREADS);
    reserve_threadgroup_memory();
    Launch launch;
    static BoundBuffer bound[MAX_BUFFERS];
    static BoundMemory memory[32];
    while (read_all(&launch, sizeof launch)) {
        if (!read_all(bound, launch.buffer_count * sizeof bound[0]) ||
            !read_all(memory, launch.memory_count * sizeof memory[0])) {
            return 1;
        }
        const pid_t child = fork();
        if (child == 0) {
            run(launch, bound, memory, file);
        }
        int status = 0;
        waitpid(child, &status, 0);
        write_line("end %d", child < 0 ? -1 : status);
    }
    return 0;
}
