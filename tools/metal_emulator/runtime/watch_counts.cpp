// Mode "count": adds up the bytes that threads load and store, and marks the bytes of buffers that
// they access.
#include <stdlib.h>

#include "access.h"
#include "counters.h"
#include "faults.h"

namespace msl {

Counters counters;

enum : char { READ = 1, WRITTEN = 2 };

struct BufferCounts {
    uint64_t read, written, accesses;
};
static BufferCounts of_buffer[MAX_BUFFERS];

void start_watching() {
    for (Buffer& buffer : buffers) {
        if (buffer.bound) {
            buffer.shadow = (char*)calloc(buffer.size + 1, 1);
        }
    }
}

void watch_device(Buffer& buffer, uint64_t offset, const Access& access) {
    BufferCounts& counts = of_buffer[&buffer - buffers];
    (access.writes ? counts.written : counts.read) += access.size;
    ++counts.accesses;
    for (uint32_t i = 0; i < access.size; ++i) {
        buffer.shadow[offset + i] |= access.writes ? WRITTEN : READ;
    }
}

void watch_threadgroup(uint64_t, const Access& access) {
    (access.writes ? counters.threadgroup_written : counters.threadgroup_read) += access.size;
    ++counters.threadgroup_accesses;
}

#define VALUE(x) ((unsigned long long)(x))

void write_counters() {
    uint64_t accesses = 0, constant_accesses = 0, constant_read = 0, read = 0, written = 0,
             unique_read = 0, unique_written = 0;
    for (const Buffer& buffer : buffers) {
        const BufferCounts& counts = of_buffer[&buffer - buffers];
        if (!buffer.bound) {
            continue;
        }
        if (buffer.constant_space) {
            constant_read += counts.read;
            constant_accesses += counts.accesses;
            continue;
        }
        uint64_t bytes_read = 0, bytes_written = 0;
        for (uint64_t i = 0; i < buffer.size; ++i) {
            bytes_read += (buffer.shadow[i] & READ) != 0;
            bytes_written += (buffer.shadow[i] & WRITTEN) != 0;
        }
        write_line("buffer\x1f%td\x1fread=%llu\x1funique_read=%llu\x1fwritten=%llu",
                   &buffer - buffers, VALUE(counts.read), VALUE(bytes_read), VALUE(counts.written));
        read += counts.read;
        written += counts.written;
        accesses += counts.accesses;
        unique_read += bytes_read;
        unique_written += bytes_written;
    }
    write_line(
        "counts\x1fthreads=%llu\x1f"
        "device_bytes_read=%llu\x1f"
        "device_bytes_written=%llu\x1f"
        "unique_device_bytes_read=%llu\x1f"
        "unique_device_bytes_written=%llu\x1f"
        "constant_bytes_read=%llu\x1fthreadgroup_bytes_read=%llu\x1f"
        "threadgroup_bytes_written=%llu\x1fsimd_operations=%llu\x1f"
        "barriers=%llu\x1fsimdgroup_matrix_multiply_adds=%llu\x1f"
        "multiply_adds=%llu\x1finteger_multiplies=%llu\x1f"
        "integer_divisions=%llu\x1finteger_operations=%llu\x1f"
        "conversions=%llu\x1f"
        "device_accesses=%llu\x1f"
        "constant_accesses=%llu\x1fthreadgroup_accesses=%llu",
        VALUE(counters.threads), VALUE(read), VALUE(written), VALUE(unique_read),
        VALUE(unique_written), VALUE(constant_read), VALUE(counters.threadgroup_read),
        VALUE(counters.threadgroup_written), VALUE(counters.simd_operations),
        VALUE(counters.barriers), VALUE(counters.matrix_multiply_adds),
        VALUE(counters.multiply_adds), VALUE(counters.integer_multiplies),
        VALUE(counters.integer_divisions), VALUE(counters.integer_operations),
        VALUE(counters.conversions), VALUE(accesses), VALUE(constant_accesses),
        VALUE(counters.threadgroup_accesses));
}

}  // namespace msl

void msl_matrix_multiply_accumulated() { msl::counters.matrix_multiply_adds += 8 * 8 * 8; }

// Called at the start of each basic block with arithmetic: see ../count_instrumentation.py.
extern "C" void msl_count_block(uint32_t multiply_adds, uint32_t integer_multiplies,
                                uint32_t integer_divisions, uint32_t integer_operations,
                                uint32_t conversions) {
    msl::counters.multiply_adds += multiply_adds;
    msl::counters.integer_multiplies += integer_multiplies;
    msl::counters.integer_divisions += integer_divisions;
    msl::counters.integer_operations += integer_operations;
    msl::counters.conversions += conversions;
}
extern "C" void __sanitizer_cov_trace_pc_guard_init(uint32_t*, uint32_t*) {}
