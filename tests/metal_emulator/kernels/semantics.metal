// Kernels for tests of the emulator's semantics, one feature each.
#include <metal_stdlib>
using namespace metal;

// ---- Simd operations: out[i][lane] is the result of operation i in a lane ----

kernel void simd_operations(device const int* x [[buffer(0)]], device int* out [[buffer(1)]],
                            uint lane [[thread_index_in_simdgroup]]) {
    const int v = x[lane];
    const int results[] = {
        simd_sum(v),
        simd_product(v % 2 == 0 ? 1 : -1),
        simd_max(v),
        simd_min(v),
        simd_and(v),
        simd_or(v),
        simd_xor(v),
        simd_prefix_inclusive_sum(v),
        simd_prefix_exclusive_sum(v),
        simd_shuffle(v, ushort(31 - lane)),
        simd_shuffle_xor(v, 5),
        simd_shuffle_down(v, 3),
        simd_shuffle_up(v, 3),
        simd_shuffle_rotate_down(v, 3),
        simd_shuffle_rotate_up(v, 3),
        simd_shuffle_and_fill_down(v, -1, 3),
        simd_shuffle_and_fill_up(v, -1, 3),
        simd_broadcast(v, 7),
        simd_broadcast_first(v),
        simd_any(v == x[9]),
        simd_all(v == x[9]),
        int(ulong(simd_ballot(lane % 3 == 0))),
        quad_sum(v),
        simd_is_first(),
    };
    for (int i = 0; i < 24; ++i) {
        out[i * 32 + lane] = results[i];
    }
}

// Lanes with numbers from `first` on have returned, so the sum excludes them.
kernel void simd_sum_of_active_lanes(device int* out [[buffer(0)]],
                                     constant uint& first [[buffer(1)]],
                                     uint lane [[thread_index_in_simdgroup]]) {
    if (lane >= first) {
        return;
    }
    out[lane] = simd_sum(1);
}

// ---- simdgroup_matrix ----

// Writes each lane's two elements of the 8×8 matrix a. The test sets a[row][column] to
// 8·row + column, so a written value identifies its element.
kernel void matrix_layout(device const float* a [[buffer(0)]], device float2* held [[buffer(1)]],
                          uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 matrix;
    simdgroup_load(matrix, a, 8);
    held[lane] = matrix.thread_elements();
}

// d = a · bᵀ + 0.5 on the diagonal, with a and b 8×8 blocks of larger matrices.
kernel void matrix_product(device const half* a [[buffer(0)]], device const half* b [[buffer(1)]],
                           device float* d [[buffer(2)]], constant int& stride [[buffer(3)]]) {
    simdgroup_half8x8 left, right;
    simdgroup_float8x8 sum(0.5f);
    simdgroup_load(left, a, stride, ulong2(2, 1));
    simdgroup_load(right, b, stride, ulong2(2, 1), true);
    simdgroup_multiply_accumulate(sum, left, right, sum);
    simdgroup_store(sum, d, 8);
}

// ---- Types and conversions ----

kernel void round_to(device const float* x [[buffer(0)]], device half* to_half [[buffer(1)]],
                     device bfloat* to_bfloat [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    to_half[i] = x[i];
    to_bfloat[i] = bfloat(x[i]);
}

// Each operation is rounded to the type of its operands.
template <typename T>
[[kernel]] void square_and_add(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
                               uint i [[thread_position_in_grid]]) {
    y[i] = x[i] * x[i] + x[i];
}
template [[host_name("square_and_add_half")]] [[kernel]] void square_and_add<half>(
    device const half*, device half*, uint);
template [[host_name(
    "square_and_add_bfloat")]] [[kernel]] decltype(square_and_add<bfloat>) square_and_add<bfloat>;

struct Pair {
    float factor;
    short4 offsets;
    packed_float3 shift;
};

kernel void types(constant Pair& pair [[buffer(0)]],
                  device const packed_float3* points [[buffer(1)]],
                  device float4* out [[buffer(2)]], device uint* words [[buffer(3)]],
                  uint i [[thread_position_in_grid]]) {
    const float3 point = points[i];
    float4 v = float4(point.zyx, 1);
    v.xy *= pair.factor;
    v.w += float(pair.offsets.z) + pair.shift[1];
    Pair copy;
    copy = pair;
    out[i] = clamp(v, -100, select(100.0f, 50.0f, copy.factor > 5));
    words[i] = as_type<uint>(float(i)) | uint(as_type<ushort>(half(1)));
}

constant float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
constant bool doubled [[function_constant(3)]];
constant int added [[function_constant(4)]];

kernel void function_constants(device float* out [[buffer(0)]],
                               device const float* more [[buffer(1), function_constant(doubled)]],
                               uint i [[thread_position_in_grid]]) {
    out[i] = table[i % 4] * (doubled ? more[i] : 1.0f) +
             (is_function_constant_defined(added) ? added : 0);
}

// ---- Grids: thread and threadgroup attributes ----

struct Told {
    uint in_grid, in_group, group, group_size, groups, grid, index, simdgroup, lane, simdgroups;
};

kernel void positions(device Told* told [[buffer(0)]], uint2 in_grid [[thread_position_in_grid]],
                      uint2 in_group [[thread_position_in_threadgroup]],
                      uint2 group [[threadgroup_position_in_grid]],
                      ushort2 group_size [[threads_per_threadgroup]],
                      uint2 groups [[threadgroups_per_grid]], uint2 grid [[threads_per_grid]],
                      uint index [[thread_index_in_threadgroup]],
                      ushort simdgroup [[simdgroup_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]],
                      ushort simdgroups [[simdgroups_per_threadgroup]]) {
    Told mine = {
        in_grid.y * 1000 + in_grid.x,
        in_group.y * 1000 + in_group.x,
        group.y * 1000 + group.x,
        uint(group_size.y * 1000 + group_size.x),
        groups.y * 1000 + groups.x,
        grid.y * 1000 + grid.x,
        index,
        simdgroup,
        lane,
        simdgroups,
    };
    told[in_grid.y * grid.x + in_grid.x] = mine;
}

// ---- Atomics ----

kernel void atomics(device atomic_int* results [[buffer(0)]],
                    device atomic_float* total [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(&results[0], int(i), memory_order_relaxed);
    atomic_fetch_max_explicit(&results[1], int(i), memory_order_relaxed);
    atomic_fetch_min_explicit(&results[2], -int(i), memory_order_relaxed);
    atomic_fetch_or_explicit(&results[3], 1 << (i % 8), memory_order_relaxed);
    atomic_fetch_add_explicit(total, 0.5f, memory_order_relaxed);
    int expected = 0;
    while (!atomic_compare_exchange_weak_explicit(&results[4], &expected, expected + 2,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

// ---- Counters ----

// y = a·x + y: reads x and y and writes y once; one multiply-add per element.
kernel void counted_axpy(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                         constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    y[i] = a * x[i] + y[i];
}

// Every thread reads all 64 elements of x and executes 64 fused multiply-adds.
kernel void counted_rereads(device const half* x [[buffer(0)]], device float* y [[buffer(1)]],
                            threadgroup float* shared [[threadgroup(0)]],
                            uint i [[thread_position_in_grid]]) {
    float sum = 0;
    for (int j = 0; j < 64; ++j) {
        sum = fma(float(x[j]), float(x[j]), sum);
    }
    shared[i] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = shared[63 - i];
}

kernel void runs_for_ever(device int* x [[buffer(0)]]) {
    device volatile int* seen = x;
    while (*seen == 0) {
    }
}

kernel void fills_the_stack(device int* x [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
    volatile int many[100000];
    many[lane] = x[lane];
    x[lane] = simd_sum(many[lane]);
}

[[kernel, max_total_threads_per_threadgroup(64)]] void few_threads(device int* x [[buffer(0)]]) {
    x[0] = 1;
}
