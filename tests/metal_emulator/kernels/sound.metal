// Small correct kernels; each test changes one statement and expects a report.
// Comments in capitals mark the lines at which faults must be reported.
#include <metal_stdlib>
using namespace metal;

// out[row] = sum of x[row, 0..n): one threadgroup per row, partial sums in threadgroup
// memory.
kernel void row_sum(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                    constant int& n [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint num_threads [[threads_per_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint num_simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];  // PARTIAL
    float sum = 0;
    for (int i = thread_index; i < n; i += num_threads) {
        sum += x[row * n + i];  // READ X
    }
    sum = simd_sum(sum);
    if (lane == 0) {
        partial[simdgroup] = sum;  // WRITE PARTIAL
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // BARRIER
    if (simdgroup == 0) {
        float mine = lane < num_simdgroups ? partial[lane] : 0.0f;  // READ PARTIAL
        sum = simd_sum(mine);                                       // SECOND SUM
        if (lane == 0) {
            out[row] = sum;  // WRITE OUT
        }
    }
}

constant constexpr int TILE = 8;

// c = a · b, n×n matrices: tiles of a and b in threadgroup memory, one thread per output.
kernel void tiled_matmul(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                         device float* c [[buffer(2)]], constant int& n [[buffer(3)]],
                         uint2 group [[threadgroup_position_in_grid]],
                         uint2 at [[thread_position_in_threadgroup]]) {
    threadgroup float tile_a[TILE][TILE];
    threadgroup float tile_b[TILE][TILE];
    const int row = group.y * TILE + at.y, column = group.x * TILE + at.x;
    float sum = 0;
    for (int start = 0; start < n; start += TILE) {
        const int i = start + at.x, j = start + at.y;
        tile_a[at.y][at.x] = row < n && i < n ? a[row * n + i] : 0.0f;        // WRITE A
        tile_b[at.y][at.x] = j < n && column < n ? b[j * n + column] : 0.0f;  // WRITE B
        threadgroup_barrier(mem_flags::mem_threadgroup);                      // TILES WRITTEN
        for (int k = 0; k < TILE; ++k) {
            sum += tile_a[at.y][k] * tile_b[k][at.x];  // READ TILES
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // TILES READ
    }
    if (row < n && column < n) {
        c[row * n + column] = sum;  // WRITE C
    }
}

// Attention of one head of size 32: a query per simdgroup, an element per lane; keys and values
// in tiles of 8, online softmax.
kernel void small_attention(device const float* query [[buffer(0)]],  // L×32
                            device const float* key [[buffer(1)]],    // S×32
                            device const float* value [[buffer(2)]],  // S×32
                            device float* out [[buffer(3)]],          // L×32
                            constant int& L [[buffer(4)]], constant int& S [[buffer(5)]],
                            uint group [[threadgroup_position_in_grid]],
                            uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint num_simdgroups [[simdgroups_per_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float keys[8][32];
    threadgroup float values[8][32];
    const int row = group * num_simdgroups + simdgroup;
    const float q = row < L ? query[row * 32 + lane] : 0.0f;
    float largest = -INFINITY, total = 0, result = 0;
    for (int start = 0; start < S; start += 8) {
        for (int j = simdgroup; j < 8; j += num_simdgroups) {
            const bool inside = start + j < S;
            keys[j][lane] = inside ? key[(start + j) * 32 + lane] : 0.0f;      // WRITE K
            values[j][lane] = inside ? value[(start + j) * 32 + lane] : 0.0f;  // WRITE V
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // LOADED
        for (int j = 0; j < 8 && start + j < S; ++j) {
            const float score = simd_sum(q * keys[j][lane]);  // SCORE
            const float next = max(largest, score);
            const float keep = exp(largest - next), weight = exp(score - next);
            result = result * keep + weight * values[j][lane];  // USE V
            total = total * keep + weight;
            largest = next;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);  // USED
    }
    if (row < L) {
        out[row * 32 + lane] = result / total;  // WRITE RESULT
    }
}

// y = x reversed within each threadgroup, through device memory.
kernel void reverse_on_device(device const int* x [[buffer(0)]], device int* scratch [[buffer(1)]],
                              device int* y [[buffer(2)]],
                              uint thread_index [[thread_position_in_grid]],
                              uint at [[thread_index_in_threadgroup]],
                              uint size [[threads_per_threadgroup]],
                              uint group [[threadgroup_position_in_grid]]) {
    scratch[thread_index] = x[thread_index];                  // WRITE SCRATCH
    threadgroup_barrier(mem_flags::mem_device);               // FENCE
    y[thread_index] = scratch[group * size + size - 1 - at];  // READ SCRATCH
}

// y = x rotated by one within each simdgroup, through threadgroup memory.
kernel void rotate_in_simdgroup(device const int* x [[buffer(0)]], device int* y [[buffer(1)]],
                                threadgroup int* shared [[threadgroup(0)]],
                                uint thread_index [[thread_position_in_grid]],
                                uint at [[thread_index_in_threadgroup]],
                                uint simdgroup [[simdgroup_index_in_threadgroup]],
                                uint lane [[thread_index_in_simdgroup]]) {
    shared[at] = x[thread_index];                                // WRITE SHARED
    simdgroup_barrier(mem_flags::mem_threadgroup);               // SIMD BARRIER
    y[thread_index] = shared[simdgroup * 32 + (lane + 1) % 32];  // READ SHARED
}

// bins[v] = number of occurrences of v in x.
kernel void histogram(device const uint* x [[buffer(0)]], device atomic_uint* bins [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(&bins[x[i]], 1u, memory_order_relaxed);  // ADD
}
