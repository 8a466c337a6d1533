// quantized_matmul for many rows of a, as in prefill: compute-bound. Tile multiplication and
// summation order: common/metal_tile.h.
//
// A threadgroup reads a tile of weights once for its BM rows of a and unpacks it in threadgroup
// memory to integers in a's 16-bit format, which represents them exactly. The matrix units multiply
// integers, and at the end of each quantization group the products are scaled, in float32:
//
//     part += scale · Σ q·a + bias · Σ a
//
// No weight is rounded. Threadgroups with the same weights are consecutive in the grid (x indexes
// the rows), so weights are read from memory about once and the smaller a from the cache.
#include <metal_stdlib>

#include "common/metal_tile.h"
#include "src/quantized_matmul/quantized_matmul_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int UNPACKED = 8;  // weights per thread and step: 4 or 8 bytes

// Unpacks BN rows, TILE_K weights each at a time, to integers. A thread always has the same rows,
// so its pointers only advance.
template <typename T, int BITS, int BN, int THREADS>
struct WeightStager {
    typedef vec<ushort, UNPACKED * BITS / 16> Packed;
    enum {
        PER_BYTE = 8 / BITS,
        ROWS_PER_ROUND = THREADS * UNPACKED / TILE_K,  // rows staged by all threads at once
        ROUNDS = BN / ROWS_PER_ROUND,
    };
    static_assert(ROUNDS * ROWS_PER_ROUND == BN, "the tile is a whole number of rounds");

    device const uchar* from[ROUNDS];  // per round: this thread's next weights of a row
    threadgroup T* to;                 // this thread's destination in the first round

    // b: the tile's first row, at the first weights to stage; rows are row_bytes apart. Rows past
    // the last row are padded with copies of it, as in RowStager with `repeats`.
    WeightStager(threadgroup T* tile, device const uchar* b, int row_bytes, int outputs_left,
                 uint thread_index) thread {
        const int first = int(thread_index) / (TILE_K / UNPACKED);
        const int column = int(thread_index) % (TILE_K / UNPACKED) * UNPACKED;
        for (int round = 0; round < ROUNDS; round++) {
            const int row = min(first + round * ROWS_PER_ROUND, outputs_left - 1);
            from[round] = b + long(row) * row_bytes + column / 8 * BITS;
        }
        to = tile + first * tile_stride<T>() + column;
    }

    // Stages the next TILE_K weights of each row. The high 4 bits of a byte are divided by 16 as a
    // float instead of being shifted right.
    void stage() thread {
        for (int round = 0; round < ROUNDS; round++) {
            const Packed packed = *(device const Packed*)from[round];
            thread const uchar* bytes = (thread const uchar*)&packed;
            for (int v = 0; v < UNPACKED; v += 4) {
                vec<T, 4> four;
                for (int i = 0; i < 4; i++) {
                    const uint one = 1u << ((v + i) % PER_BYTE * BITS);
                    const uint bits = bytes[(v + i) / PER_BYTE] & ((one << BITS) - one);
                    four[i] = T(float(bits) * (1.0f / float(one)));
                }
                *(threadgroup vec<T, 4>*)(to + round * ROWS_PER_ROUND * tile_stride<T>() + v) =
                    four;
            }
            from[round] += TILE_K / 8 * BITS;
        }
    }
};

// Stores the sum of each row's activations over the group in `sums`, an array of BM. The four
// threads of a row add the sums of the elements that they staged (see RowStager), and reset them.
template <int ROUNDS, int ROWS_PER_ROUND>
void store_row_sums(thread float (&added)[ROUNDS], threadgroup float* sums, uint thread_index) {
    for (int round = 0; round < ROUNDS; round++) {
        float sum = added[round] + simd_shuffle_xor(added[round], ushort(1));
        sum += simd_shuffle_xor(sum, ushort(2));
        if (thread_index % 4 == 0) {
            sums[int(thread_index) / 4 + round * ROWS_PER_ROUND] = sum;
        }
        added[round] = 0;
    }
}

// Accumulates Σ q·a over one quantization group for a simdgroup's rows and outputs. At the group's
// end, the sums are scaled and added to the tile's sums.
template <typename T, int GROUP_SIZE, int ROWS, int COLUMNS>
struct GroupSums {
    simdgroup_float8x8 unscaled[ROWS][COLUMNS];
    device const T *scales, *biases;  // of the current group, for the tile's first output
    int output[COLUMNS][2];           // offsets in `scales` and `biases` of this lane's outputs
    int row;                          // this lane's first row in the tile

    // scales, biases: of the tile's first output and first group. Lanes past the last output read
    // those of the last output, and their results are not stored.
    GroupSums(device const T* scales, device const T* biases, int I, int outputs_left,
              int first_row, int first_column, uint lane) thread : scales(scales),
                                                                   biases(biases) {
        const LanePosition position(lane);
        row = first_row + position.row;
        for (int c = 0; c < COLUMNS; c++) {
            for (int i = 0; i < 2; i++) {
                const int o = min(first_column + c * 8 + position.column + i, outputs_left - 1);
                output[c][i] = o * (I / GROUP_SIZE);
            }
        }
        clear();
    }

    void clear() thread {
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                unscaled[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    // Ends a group: part += scale · unscaled + bias · row_sums.
    void finish(thread simdgroup_float8x8 (&part)[ROWS][COLUMNS],
                threadgroup const float* row_sums) thread {
        float sums[ROWS];
        for (int r = 0; r < ROWS; r++) {
            sums[r] = row_sums[row + r * 8];
        }
        for (int c = 0; c < COLUMNS; c++) {
            const float2 scale = float2(float(scales[output[c][0]]), float(scales[output[c][1]]));
            const float2 bias = float2(float(biases[output[c][0]]), float(biases[output[c][1]]));
            for (int r = 0; r < ROWS; r++) {
                thread float2& sum = elements(part[r][c]);
                sum = fma(bias, float2(sums[r]), fma(scale, elements(unscaled[r][c]), sum));
            }
        }
        scales++;
        biases++;
        clear();
    }
};

// A threadgroup of SM × SN simdgroups computes BM × BN outputs.
// U: T, or float for the partial sums of split-K; threadgroups with grid index z store part z of P.
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
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float4 memory[tile_bytes<T, T, BM, BN>() / 16];
    threadgroup float row_sums[BM];  // sums of each row of a over the current group
    threadgroup T* weights = (threadgroup T*)memory;
    threadgroup T* activations = weights + BN * tile_stride<T>();
    constexpr int THREADS = SM * SN * 32;

    const long M = params.M, O = params.O;
    const int I = params.I;
    const long m = long(group.x) * BM, o = long(group.y) * BN;
    const int begin = groups.z == 1 ? 0 : group.z * TILE_PART;
    const int end = groups.z == 1 ? I : min(I, begin + TILE_PART);
    const int rows_left = min(long(BM), M - m), outputs_left = min(long(BN), O - o);

    const int row_bytes = I / 8 * BITS, row_groups = I / GROUP_SIZE;
    WeightStager<T, BITS, BN, THREADS> weight_stager(
        weights, (device const uchar*)b + o * row_bytes + begin / 8 * BITS, row_bytes, outputs_left,
        thread_index);
    typedef RowStager<T, BM, THREADS, true> Rows;
    Rows row_stager(activations, a + m * I + begin, I, rows_left, TILE_K, thread_index);
    float added[Rows::ROUNDS] = {};

    typedef TileSums<BM, BN, SM, SN> Sums;
    Sums sums(simdgroup);
    GroupSums<T, GROUP_SIZE, Sums::ROWS, Sums::COLUMNS> group_sums(
        scales + o * row_groups + begin / GROUP_SIZE, biases + o * row_groups + begin / GROUP_SIZE,
        I, outputs_left, sums.first_row, sums.first_column, lane);
    for (int part = begin; part < end; part += TILE_PART) {
        const int part_end = min(end, part + TILE_PART);
        for (int k = part; k < part_end; k += GROUP_SIZE) {
            for (int done = 0; done < GROUP_SIZE; done += TILE_K) {
                threadgroup_barrier(mem_flags::mem_threadgroup);  // before overwriting the tiles
                weight_stager.stage();
                row_stager.stage(0, added);
                if (done + TILE_K == GROUP_SIZE) {
                    store_row_sums<Rows::ROUNDS, Rows::ROWS_PER_ROUND>(added, row_sums,
                                                                       thread_index);
                }
                threadgroup_barrier(mem_flags::mem_threadgroup);
                sums.multiply_to(group_sums.unscaled, activations, weights);
            }
            group_sums.finish(sums.part, row_sums);
        }
        sums.finish_part();
    }
    sums.store(out + (group.z * M + m) * O + o, O, rows_left, outputs_left, lane);
}

#define INSTANTIATE(variant, name, T, U, BITS, GROUP_SIZE, ...)                           \
    template [[host_name("quantized_matmul_" variant "_" name "_b" #BITS                  \
                         "_g" #GROUP_SIZE)]] [[kernel]] void                              \
    quantized_matmul_tile<T, U, BITS, GROUP_SIZE, __VA_ARGS__>(                           \
        device const T*, device const T*, device const T*, device const uint*, device U*, \
        constant const QuantizedMatmulParams&, uint3, uint3, uint, uint, uint);

#define INSTANTIATE_VARIANTS(name, T, BITS, GROUP_SIZE)               \
    INSTANTIATE("tile64", name, T, T, BITS, GROUP_SIZE, 64, 64, 2, 4) \
    INSTANTIATE("tile32", name, T, T, BITS, GROUP_SIZE, 32, 32, 1, 2) \
    INSTANTIATE("tile32_split_k", name, T, float, BITS, GROUP_SIZE, 32, 32, 1, 2)

#define INSTANTIATE_FORMATS(name, T)      \
    INSTANTIATE_VARIANTS(name, T, 4, 32)  \
    INSTANTIATE_VARIANTS(name, T, 4, 64)  \
    INSTANTIATE_VARIANTS(name, T, 4, 128) \
    INSTANTIATE_VARIANTS(name, T, 8, 32)  \
    INSTANTIATE_VARIANTS(name, T, 8, 64)  \
    INSTANTIATE_VARIANTS(name, T, 8, 128)

INSTANTIATE_FORMATS("bfloat16", bfloat)
INSTANTIATE_FORMATS("float16", half)
