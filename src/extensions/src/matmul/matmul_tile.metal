// matmul for many rows of a, as in prefill: compute-bound. Tile multiplication and summation order:
// common/metal_tile.h.
//
// Threadgroups with the same outputs are consecutive in the grid (x indexes the rows), so b is read
// from memory about once and the smaller a from the cache.
#include <metal_stdlib>

#include "common/metal_tile.h"
#include "src/matmul/matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

// A threadgroup of SM × SN simdgroups computes BM × BN outputs.
// WHOLE: rows are aligned to 16 bytes and multiples of 16 bytes long.
// U: T, or float for the partial sums of split-K; threadgroups with grid index z store part z of P.
template <typename T, typename U, bool WHOLE, int BM, int BN, int SM, int SN>
[[kernel, max_total_threads_per_threadgroup(SM * SN * 32)]] void matmul_tile(
    device const T* a [[buffer(0)]],  // M × I
    device const T* b [[buffer(1)]],  // O × I
    device U* out [[buffer(2)]],      // M × O, or P × M × O
    constant const MatmulParams& params [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],  // x: rows, y: outputs, z: parts
    uint3 groups [[threadgroups_per_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 memory[tile_bytes<T, T, BM, BN>() / 16];
    threadgroup T* left = (threadgroup T*)memory;
    threadgroup T* right = left + BM * tile_stride<T>();
    constexpr int THREADS = SM * SN * 32;

    const long M = params.M, O = params.O;
    const int I = params.I;
    const long m = long(group.x) * BM, o = long(group.y) * BN;
    const int begin = groups.z == 1 ? 0 : group.z * TILE_PART;
    const int row_elements =
        groups.z == 1 ? I : min(I - begin, int(TILE_PART));  // row elements of this threadgroup
    const int rows_left = min(long(BM), M - m), outputs_left = min(long(BN), O - o);
    a += m * params.a_stride + begin;
    b += o * params.b_stride + begin;

    TileSums<BM, BN, SM, SN> sums(simdgroup);
    RowStager<T, BM, THREADS, WHOLE> left_rows(left, a, params.a_stride, rows_left, I - begin,
                                               thread_index);
    RowStager<T, BN, THREADS, WHOLE> right_rows(right, b, params.b_stride, outputs_left, I - begin,
                                                thread_index, true);
    for (int part = 0; part < row_elements; part += TILE_PART) {
        const int part_end = min(row_elements, part + TILE_PART);
        for (int done = part; done < part_end; done += TILE_K) {
            threadgroup_barrier(mem_flags::mem_threadgroup);  // before overwriting the tiles
            left_rows.stage(done);
            right_rows.stage(done);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            sums.multiply(left, right);
        }
        sums.finish_part();
    }
    sums.store(out + (group.z * M + m) * O + o, O, rows_left, outputs_left, lane);
}

// out[i] = Σ_p parts[p, i], in the order of p: the final reduction of split-K in matmul and
// quantized_matmul. One thread per i.
template <typename T>
[[kernel]] void matmul_split_k_sum(device const float* parts [[buffer(0)]],  // P × size
                                   device T* out [[buffer(1)]],              // size
                                   constant const SplitKSumParams& params [[buffer(2)]],
                                   uint index [[thread_position_in_grid]]) {
    const long i = index;
    if (i >= params.size) {
        return;
    }
    float total = 0;
    for (int p = 0; p < params.parts; p++) {
        total += parts[p * params.size + i];
    }
    out[i] = T(total);
}

#define INSTANTIATE(variant, name, T, U, WHOLE, ...)                                              \
    template [[host_name("matmul_" variant "_" name)]] [[kernel]] void                            \
    matmul_tile<T, U, WHOLE, __VA_ARGS__>(device const T*, device const T*, device U*,            \
                                          constant const MatmulParams&, uint3, uint3, uint, uint, \
                                          uint);

#define INSTANTIATE_VARIANTS(name, T)                                \
    INSTANTIATE("tile64", name, T, T, true, 64, 64, 2, 2)            \
    INSTANTIATE("tile32", name, T, T, true, 32, 32, 1, 2)            \
    INSTANTIATE("tile64_unaligned", name, T, T, false, 64, 64, 2, 2) \
    INSTANTIATE("tile32_unaligned", name, T, T, false, 32, 32, 1, 2)

// Kernels that store partial sums. Not needed for float32: tile32 already stores float32.
#define INSTANTIATE_PARTS(name, T)                                    \
    INSTANTIATE("tile32_split_k", name, T, float, true, 32, 32, 1, 2) \
    INSTANTIATE("tile32_split_k_unaligned", name, T, float, false, 32, 32, 1, 2)

INSTANTIATE_VARIANTS("float32", float)
INSTANTIATE_VARIANTS("float16", half)
INSTANTIATE_VARIANTS("bfloat16", bfloat)
INSTANTIATE_PARTS("float16", half)
INSTANTIATE_PARTS("bfloat16", bfloat)

#define INSTANTIATE_SUM(name, T)                                                                   \
    template [[host_name("matmul_tile_split_k_sum_" name)]] [[kernel]] void matmul_split_k_sum<T>( \
        device const float*, device T*, constant const SplitKSumParams&, uint);

INSTANTIATE_SUM("float32", float)
INSTANTIATE_SUM("float16", half)
INSTANTIATE_SUM("bfloat16", bfloat)
