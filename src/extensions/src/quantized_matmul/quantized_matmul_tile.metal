// quantized_matmul for many rows of a, as in prefill: bound by arithmetic. common/metal_tile.h says
// how a tile is multiplied, and in which order numbers are added up.
//
// A threadgroup reads a tile of weights once for its BM rows of a and unpacks it into float32 in
// threadgroup memory: value = q · scale + bias, rounded to float32 and not to the format of a.
// Threadgroups with the same weights follow one another in the grid (x is the rows), so that
// weights come from memory about once and a, which is smaller, from the cache.
#include <metal_stdlib>

#include "common/metal_tile.h"
#include "src/quantized_matmul/quantized_matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int UNPACKED = 8;  // values that a thread unpacks at a time, 4 or 8 bytes

// Unpacks BN rows of TILE_K weights, numbers k to k + TILE_K − 1 of each. A thread always has the
// same rows, so it reads scale and bias where a group begins, and keeps them.
template <typename T, int BITS, int GROUP_SIZE, int BN, int THREADS>
struct WeightStager {
    typedef vec<ushort, UNPACKED * BITS / 16> Packed;
    enum {
        PER_SHORT = 16 / BITS,
        ROWS = THREADS * UNPACKED / TILE_K,  // that all threads unpack together
        STEPS = BN / ROWS,
    };
    static_assert(STEPS * ROWS == BN, "threads unpack whole rows, several times");

    int row, column;     // in the tile; of the first step
    int outputs_left;    // rows that are inside of b
    ulong first;         // number of the first weight in the thread's first row
    ulong row_distance;  // from there to its row in the next step
    float scale[STEPS], bias[STEPS];

    WeightStager(long first_output, int outputs_left, int I, uint thread_index)
        : outputs_left(outputs_left) {
        row = thread_index / (TILE_K / UNPACKED);
        column = thread_index % (TILE_K / UNPACKED) * UNPACKED;
        first = (first_output + row) * I;
        row_distance = ulong(ROWS) * I;
        for (int s = 0; s < STEPS; s++) {
            scale[s] = 0;
            bias[s] = 0;
        }
    }

    void stage(threadgroup float* tile, device const T* scales, device const T* biases,
               device const uint* b, int k) {
        for (int s = 0; s < STEPS; s++) {
            const ulong number = first + s * row_distance + k;
            Packed packed = Packed(0);
            if (row + s * ROWS < outputs_left) {
                if (k % GROUP_SIZE == 0) {
                    scale[s] = float(scales[number / GROUP_SIZE]);
                    bias[s] = float(biases[number / GROUP_SIZE]);
                }
                packed = *(device const Packed*)(b + (number + column) / (32 / BITS));
            }
            unpack(packed, scale[s], bias[s],
                   tile + (row + s * ROWS) * tile_stride<float>() + column);
        }
    }

    static void unpack(Packed packed, float scale, float bias, threadgroup float* to) {
        for (int v = 0; v < UNPACKED; v += 4) {
            float4 four;
            for (int i = 0; i < 4; i++) {
                const uint bits = packed[(v + i) / PER_SHORT];
                const uint q = bits >> ((v + i) % PER_SHORT * BITS) & ((1u << BITS) - 1);
                four[i] = fma(float(q), scale, bias);
            }
            *(threadgroup float4*)(to + v) = four;
        }
    }
};

// U: T, or float for the sums of a single part each, part z of P × M × O.
template <typename T, typename U, int BITS, int GROUP_SIZE, int BM, int BN, int SM, int SN>
[[kernel, max_total_threads_per_threadgroup(SM * SN * 32)]] void quantized_matmul_tile(
    device const T* scales [[buffer(0)]],  // O × I/GROUP_SIZE
    device const T* biases [[buffer(1)]],  // O × I/GROUP_SIZE
    device const T* a [[buffer(2)]],       // M × I
    device const uint* b [[buffer(3)]],    // O × I·BITS/32
    device U* out [[buffer(4)]],           // M × O, or P × M × O
    constant const QuantizedMatmulParams& params [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],  // x: rows, y: outputs, z: parts
    uint3 groups [[threadgroups_per_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 memory[tile_bytes<T, float, BM, BN>() / 16];
    threadgroup float* weights = (threadgroup float*)memory;
    threadgroup T* activations = (threadgroup T*)(weights + BN * tile_stride<float>());

    const long M = params.M, O = params.O;
    const int I = params.I;
    const long m = long(group.x) * BM, o = long(group.y) * BN;
    const int begin = groups.z == 1 ? 0 : group.z * TILE_PART;
    const int end = groups.z == 1 ? I : min(I, begin + TILE_PART);
    const int rows_left = min(long(BM), M - m), outputs_left = min(long(BN), O - o);

    TileSums<BM, BN, SM, SN> sums(simdgroup);
    WeightStager<T, BITS, GROUP_SIZE, BN, SM * SN * 32> stager(o, outputs_left, I, thread_index);
    for (int k = begin; k < end; k += TILE_K) {
        threadgroup_barrier(mem_flags::mem_threadgroup);  // all have used the last tiles
        stager.stage(weights, scales, biases, b, k);
        stage_rows<T, BM, SM * SN * 32, true>(activations, a + m * I + k, I, rows_left, TILE_K,
                                              thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums.multiply(activations, weights);
        if ((k + TILE_K) % TILE_PART == 0 || k + TILE_K == end) {
            sums.finish_part();
        }
    }
    sums.store((threadgroup float*)memory, out + (group.z * M + m) * O + o, O, rows_left,
               outputs_left, thread_index);
}

#define INSTANTIATE(variant, name, T, U, BITS, GROUP_SIZE, ...)                           \
    template [[host_name("quantized_matmul_" variant "_" name "_b" #BITS                  \
                         "_g" #GROUP_SIZE)]] [[kernel]] void                              \
    quantized_matmul_tile<T, U, BITS, GROUP_SIZE, __VA_ARGS__>(                           \
        device const T*, device const T*, device const T*, device const uint*, device U*, \
        constant const QuantizedMatmulParams&, uint3, uint3, uint, uint);

#define INSTANTIATE_VARIANTS(name, T, BITS, GROUP_SIZE)               \
    INSTANTIATE("tile64", name, T, T, BITS, GROUP_SIZE, 64, 64, 2, 4) \
    INSTANTIATE("tile32", name, T, T, BITS, GROUP_SIZE, 32, 32, 1, 2) \
    INSTANTIATE("tile32_parts", name, T, float, BITS, GROUP_SIZE, 32, 32, 1, 2)

#define INSTANTIATE_FORMATS(name, T)      \
    INSTANTIATE_VARIANTS(name, T, 4, 32)  \
    INSTANTIATE_VARIANTS(name, T, 4, 64)  \
    INSTANTIATE_VARIANTS(name, T, 4, 128) \
    INSTANTIATE_VARIANTS(name, T, 8, 32)  \
    INSTANTIATE_VARIANTS(name, T, 8, 64)  \
    INSTANTIATE_VARIANTS(name, T, 8, 128)

INSTANTIATE_FORMATS("bfloat16", bfloat)
INSTANTIATE_FORMATS("float16", half)
