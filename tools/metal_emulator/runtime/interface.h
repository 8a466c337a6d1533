// Interface between kernels (compiled with msl/*.h) and the runtime.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace msl {

constexpr uint32_t LANES = 32;

// A source location of the kernel. As a default argument, `Site::here()` is the location of the
// call; the column distinguishes two barriers on one line.
struct Site {
    const char* file;
    uint32_t line, column;
    static constexpr Site here(const char* file = __builtin_FILE(),
                               uint32_t line = __builtin_LINE(),
                               uint32_t column = __builtin_COLUMN()) {
        return {file, line, column};
    }
};

// Kinds of synchronization in a simdgroup. Reductions and shuffles are defined for the
// participating lanes; matrix operations and simdgroup barriers require all lanes.
enum class Meeting : uint32_t { REDUCTION, SHUFFLE, MATRIX, BARRIER };

// Exchange table of a simdgroup: each lane's operand and result, of at most 64 bytes.
struct Exchange {
    alignas(64) unsigned char input[LANES][64];
    alignas(64) unsigned char result[LANES][64];
};

// A thread's position in the grid, which the position attributes of kernel parameters select from.
struct Position {
    uint32_t thread_in_grid[3], thread_in_group[3], group_in_grid[3];
    uint32_t group_size[3], nominal_group_size[3], grid_size[3], groups_in_grid[3];
    uint32_t thread_index, simdgroup, lane, simdgroups, simd_width, quadgroup, quad_lane;
};

// Memory bound to a launch's parameters, by index.
struct Bindings {
    void* buffers[64];
    void* threadgroup_memory[32];
};

enum class Binding : uint32_t { BUFFER, THREADGROUP_MEMORY, POSITION };

// One parameter of a kernel. `index` is the buffer's or, for POSITION, the offset in Position.
struct Parameter {
    const char* name;
    Binding binding;
    uint32_t index;
    // f float, h half, b bfloat, i signed, u unsigned, ? bool, s struct, v void, - none
    char element;
    uint32_t element_size;  // bytes of one scalar or struct
    uint32_t size;          // bytes of the pointee
    bool reference, writes, constant_space, optional;
};

struct Kernel {
    const char* name;
    void (*call)(const Bindings&, const Position&);
    const Parameter* parameters;
    uint32_t parameter_count, max_threads;
};

}  // namespace msl

// Generated table, one entry per kernel of the library.
extern const msl::Kernel msl_kernels[];
extern const uint32_t msl_kernel_count;

extern "C" {
// Blocks the calling lane until its simdgroup has arrived. The last lane to arrive gets the mask of
// the participating lanes and must compute their results; the others get 0 and read the results.
uint32_t msl_meet(msl::Meeting, const char* name, msl::Site);
msl::Exchange* msl_exchange();
uint32_t msl_lane();
void msl_threadgroup_barrier(uint32_t flags, msl::Site);
void msl_simdgroup_barrier(uint32_t flags, msl::Site);
// Storage of a `threadgroup` variable in a kernel's body, shared by the threadgroup.
void* msl_threadgroup_variable(uint32_t id, const char* name, uint64_t size, uint64_t alignment,
                               msl::Site);
[[noreturn]] void msl_fail(const char* kind, const char* text, msl::Site);
void msl_atomic(const volatile void* address, uint32_t size, bool writes, void* caller);
// Mode "loose" only. `msl_choice`: a random number by index, fixed within a launch.
// `msl_approximate`: perturbs an exact result within the error that Metal allows.
// `msl_contracts`: whether the multiply-add at a code location is fused.
uint32_t msl_choice(uint32_t number);
float msl_approximate(float exact);
bool msl_contracts(uint32_t place);
void msl_matrix_multiply_accumulated();  // counts one 8×8×8 matrix multiplication
}
