// A tile of a matrix multiplication out = x · wᵀ in a threadgroup's matrix units: what matmul and
// quantized_matmul share. For Metal only.
//
// A threadgroup computes BM rows × BN outputs. For every BK numbers of the rows it stages BM rows
// of x and BN rows of w in threadgroup memory (stage_rows, or what unpacks weights), and each of
// its SIMDGROUPS_M × SIMDGROUPS_N simdgroups multiplies its part of the tile from there (multiply).
// All arithmetic is float32.
//
// The order of a sum. The numbers of a row come in parts of TILE_PART. Within a part they are added
// in order, eight to an instruction of the matrix unit; then the parts are added in order. One
// threadgroup may compute all parts, or as many threadgroups as there are parts one each, whose
// results matmul_sum_parts adds in the same order: with few tiles that occupies the whole GPU. The
// result is the same to the last bit, whichever it was, for every BM and BN, and for any number of
// rows.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "common/metal_tile_sizes.h"

namespace tiny_llm_ext {

using namespace metal;

/// Adds `from` to `to`. Which element of a matrix a thread holds does not matter here.
inline void add_matrix(thread simdgroup_float8x8& to, thread simdgroup_float8x8& from) {
    reinterpret_cast<thread float2&>(to.thread_elements()) +=
        reinterpret_cast<thread float2&>(from.thread_elements());
}

/// Loads an 8×8 matrix as float32 from a tile in another format. It relies on a thread holding the
/// same elements of a matrix in every format.
template <bool TRANSPOSE, typename T>
void load_matrix(thread simdgroup_float8x8& matrix, threadgroup const T* tile, ulong stride) {
    simdgroup_matrix<T, 8, 8> narrow;
    simdgroup_load(narrow, tile, stride, ulong2(0, 0), TRANSPOSE);
    const thread auto& elements = reinterpret_cast<thread vec<T, 2>&>(narrow.thread_elements());
    reinterpret_cast<thread float2&>(matrix.thread_elements()) =
        float2(float(elements[0]), float(elements[1]));
}

template <bool TRANSPOSE>
void load_matrix(thread simdgroup_float8x8& matrix, threadgroup const float* tile, ulong stride) {
    simdgroup_load(matrix, tile, stride, ulong2(0, 0), TRANSPOSE);
}

/// Where a row of a staged tile begins, in elements: 16 bytes further than it had to, so that
/// rows begin in different banks of the memory.
template <typename T>
constexpr int tile_stride() {
    return TILE_K + 16 / sizeof(T);
}

/// Stages ROWS rows of TILE_K numbers, from `rows` on, in 16 bytes a thread and step.
///
/// rows: the first row's first number, `stride` numbers from one row to the next. Beyond rows_left
/// rows and numbers_left numbers the tile is zero, and nothing is read. WHOLE: all 16 bytes of a
/// step are in the row or none, and aligned.
template <typename T, int ROWS, int THREADS, bool WHOLE>
void stage_rows(threadgroup T* tile, device const T* rows, long stride, int rows_left,
                int numbers_left, uint thread_index) {
    constexpr int STEP = 16 / sizeof(T), STEPS = TILE_K / STEP;  // in a row
    for (int step = thread_index; step < ROWS * STEPS; step += THREADS) {
        const int row = step / STEPS, k = step % STEPS * STEP;
        threadgroup T* to = tile + row * tile_stride<T>() + k;
        device const T* from = rows + row * stride + k;
        if (WHOLE) {
            *(threadgroup uint4*)to = row < rows_left && k < numbers_left
                                          ? *(device const uint4*)from
                                          : uint4(0, 0, 0, 0);
        } else {
            for (int i = 0; i < STEP; i++) {
                to[i] = row < rows_left && k + i < numbers_left ? from[i] : T(0.0f);
            }
        }
    }
}

/// The sums of one simdgroup: ROWS × COLUMNS matrices of 8×8, of BM/SIMDGROUPS_M rows and
/// BN/SIMDGROUPS_N outputs. Its functions say that it is in `thread`: Metal 4.1 assumes nothing.
template <int BM, int BN, int SIMDGROUPS_M, int SIMDGROUPS_N>
struct TileSums {
    enum {
        ROWS = BM / SIMDGROUPS_M / 8,
        COLUMNS = BN / SIMDGROUPS_N / 8,
        THREADS = SIMDGROUPS_M * SIMDGROUPS_N * 32,
    };

    simdgroup_float8x8 part[ROWS][COLUMNS];
    simdgroup_float8x8 total[ROWS][COLUMNS];
    int first_row, first_column;

    /// All zero.
    explicit TileSums(uint simdgroup) thread {
        first_row = simdgroup / SIMDGROUPS_N * ROWS * 8;
        first_column = simdgroup % SIMDGROUPS_N * COLUMNS * 8;
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                part[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
                total[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    /// part += x · wᵀ for the staged tiles x (BM × TILE_K) and w (BN × TILE_K).
    template <typename X, typename W>
    void multiply(threadgroup const X* x, threadgroup const W* w) thread {
        for (int k = 0; k < TILE_K; k += 8) {
            simdgroup_float8x8 left[ROWS], right[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                load_matrix<false>(left[r], x + (first_row + r * 8) * tile_stride<X>() + k,
                                   tile_stride<X>());
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                load_matrix<true>(right[c], w + (first_column + c * 8) * tile_stride<W>() + k,
                                  tile_stride<W>());
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    simdgroup_multiply_accumulate(part[r][c], left[r], right[c], part[r][c]);
                }
            }
        }
    }

    /// A part of the numbers is complete: total += part, part = 0.
    void finish_part() thread {
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                add_matrix(total[r][c], part[r][c]);
                part[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    /// Writes the totals that are inside of the matrix to out (M × O), through `memory` (BM × BN).
    /// To be called by all threads; begins with a barrier, as `memory` may be that of the tiles.
    template <typename U>
    void store(threadgroup float* memory, device U* out, long O, int rows_left, int columns_left,
               uint thread_index) thread {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                simdgroup_store(total[r][c],
                                memory + (first_row + r * 8) * BN + first_column + c * 8, BN);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = thread_index; i < BM * BN; i += THREADS) {
            const int row = i / BN, column = i % BN;
            if (row < rows_left && column < columns_left) {
                out[row * O + column] = U(memory[i]);
            }
        }
    }
};

/// Bytes of threadgroup memory for staged tiles of x and w, which the totals use again.
template <typename X, typename W, int BM, int BN>
constexpr int tile_bytes() {
    constexpr int tiles = BM * tile_stride<X>() * sizeof(X) + BN * tile_stride<W>() * sizeof(W);
    constexpr int totals = BM * BN * sizeof(float);
    return tiles > totals ? tiles : totals;
}

}  // namespace tiny_llm_ext
