// Matrix multiplication tile out = x · wᵀ in simdgroup matrices, shared by matmul and
// quantized_matmul. Metal only.
//
// A threadgroup computes BM rows × BN outputs. For every TILE_K elements of the inner dimension it
// stages BM rows of x and BN rows of w in threadgroup memory (RowStager, or the weight unpacker).
// Each of its SIMDGROUPS_M × SIMDGROUPS_N simdgroups then computes its share of the outputs
// (multiply). All arithmetic is float32.
//
// Summation order. The inner dimension is divided into parts of TILE_PART elements. Elements of a
// part are accumulated in order, eight per matrix instruction; parts are then added in order.
// Normally one threadgroup computes all parts. With few tiles, split-K occupies the GPU: each part
// has a separate threadgroup, and matmul_split_k_sum adds the partial sums in the same order.
// Results are bit-identical either way, for every BM and BN and any number of rows.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include "common/metal_tile_sizes.h"

namespace tiny_llm_ext {

using namespace metal;

/// to += from. Correct for any mapping from matrix elements to threads, because both matrices have
/// the same mapping.
inline void add_matrix(thread simdgroup_float8x8& to, thread simdgroup_float8x8& from) {
    reinterpret_cast<thread float2&>(to.thread_elements()) +=
        reinterpret_cast<thread float2&>(from.thread_elements());
}

/// Loads an 8×8 matrix as float32 from a tile in another format. Assumes that Metal maps matrix
/// elements to threads in the same way in every format.
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

/// Row stride of a staged tile in elements: padded by 16 bytes so that rows begin in different
/// memory banks.
template <typename T>
constexpr int tile_stride() {
    return TILE_K + 16 / sizeof(T);
}

/// Index of this lane's two adjacent elements of an 8×8 matrix: (row, column) and (row, column +
/// 1). Lanes of one row differ in bits 0 and 3 of their index.
struct LanePosition {
    int row, column;

    explicit LanePosition(uint lane) thread {
        const int quad = int(lane) / 4;
        row = (quad & 4) + int(lane) / 2 % 4;
        column = (quad & 2) * 2 + int(lane) % 2 * 2;
    }
};

inline thread float2& elements(thread simdgroup_float8x8& matrix) {
    return reinterpret_cast<thread float2&>(matrix.thread_elements());
}

/// Copies ROWS rows to a tile in threadgroup memory, TILE_K elements of each at a time, in rounds
/// of 16 bytes per thread. A thread always copies to the same rows and columns of the tile, so its
/// pointers only advance.
///
/// Rows ≥ rows_left and elements ≥ elements_left are zero in the tile and are not read. WHOLE: each
/// 16-byte load is aligned and entirely inside or outside the row.
template <typename T, int ROWS, int THREADS, bool WHOLE>
struct RowStager {
    enum {
        ELEMENTS = 16 / sizeof(T),
        ROWS_PER_ROUND = THREADS * ELEMENTS / TILE_K,
        ROUNDS = ROWS / ROWS_PER_ROUND,
    };
    static_assert(ROUNDS * ROWS_PER_ROUND == ROWS, "the tile is a whole number of rounds");

    device const T* from[ROUNDS];  // per round: this thread's next elements of a row
    bool has[ROUNDS];              // per round: whether to copy the row, or to store zeros
    threadgroup T* to;             // this thread's destination in the first round
    int left;                      // number of elements from this thread's column to a row's end

    /// rows: first element of the first row; rows are row_stride elements apart. repeats: pads with
    /// copies of the last row instead of zeros. Results of padding rows are discarded either way;
    /// zeros save memory traffic, but cost a branch per step.
    RowStager(threadgroup T* tile, device const T* rows, long row_stride, int rows_left,
              int elements_left, uint thread_index, bool repeats = false) thread {
        const int first = int(thread_index) / (TILE_K / ELEMENTS);
        const int column = int(thread_index) % (TILE_K / ELEMENTS) * ELEMENTS;
        for (int round = 0; round < ROUNDS; round++) {
            const int row = first + round * ROWS_PER_ROUND;
            from[round] = rows + min(row, rows_left - 1) * row_stride + column;
            has[round] = repeats || row < rows_left;
        }
        to = tile + first * tile_stride<T>() + column;
        left = elements_left - column;
    }

    /// Stages the next TILE_K elements of each row, of which `done` have already been staged. sums
    /// (optional): one total per round, to which this thread's elements are added.
    void stage(int done, thread float* sums = nullptr) thread {
        const bool has_more = done < left;
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            threadgroup T* destination = to + round * ROWS_PER_ROUND * tile_stride<T>();
            T values[ELEMENTS];
            if (WHOLE) {
                thread uint4& all = reinterpret_cast<thread uint4&>(values);
                all =
                    has[round] && has_more ? *(device const uint4*)from[round] : uint4(0, 0, 0, 0);
                *(threadgroup uint4*)destination = all;
            } else {
                for (int i = 0; i < ELEMENTS; i++) {
                    values[i] = has[round] && done + i < left ? from[round][i] : T(0.0f);
                    destination[i] = values[i];
                }
            }
            for (int i = 0; sums != nullptr && i < ELEMENTS; i++) {
                sums[round] += float(values[i]);
            }
            from[round] += TILE_K;
        }
    }
};

/// Accumulators of one simdgroup: ROWS × COLUMNS matrices of 8×8, for BM/SIMDGROUPS_M rows and
/// BN/SIMDGROUPS_N outputs. Member functions are qualified `thread`: Metal 4.1 has no default
/// address space.
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

    /// Zeroes all accumulators.
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
        multiply_to(part, x, w);
    }

    /// to += x · wᵀ for the staged tiles x (BM × TILE_K) and w (BN × TILE_K).
    template <typename X, typename W>
    void multiply_to(thread simdgroup_float8x8 (&to)[ROWS][COLUMNS], threadgroup const X* x,
                     threadgroup const W* w) thread {
        x += first_row * tile_stride<X>();
        w += first_column * tile_stride<W>();
#pragma unroll
        for (int k = 0; k < TILE_K; k += 8) {
            simdgroup_float8x8 left[ROWS], right[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                load_matrix<false>(left[r], x + r * 8 * tile_stride<X>() + k, tile_stride<X>());
            }
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                load_matrix<true>(right[c], w + c * 8 * tile_stride<W>() + k, tile_stride<W>());
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int c = 0; c < COLUMNS; c++) {
                    simdgroup_multiply_accumulate(to[r][c], left[r], right[c], to[r][c]);
                }
            }
        }
    }

    /// Called after each TILE_PART elements of the inner dimension: total += part, part = 0.
    void finish_part() thread {
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                add_matrix(total[r][c], part[r][c]);
                part[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    /// Writes the totals to this tile of out (M × O), except rows ≥ rows_left and columns ≥
    /// columns_left, which are beyond the matrix. A lane holds two adjacent elements of each 8×8
    /// matrix.
    template <typename U>
    void store(device U* out, long O, int rows_left, int columns_left, uint lane) thread {
        const LanePosition position(lane);
        const int row = first_row + position.row, column = first_column + position.column;
        out += row * O + column;
        if (columns_left >= BN) {
            store_rows<true>(out, O, rows_left - row, BN);
        } else {
            store_rows<false>(out, O, rows_left - row, columns_left - column);
        }
    }

    /// out: destination of this lane's first element. WHOLE: all columns are within the matrix.
    template <bool WHOLE, typename U>
    void store_rows(device U* out, long O, int rows_left, int columns_left) thread {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int c = 0; c < COLUMNS && r * 8 < rows_left; c++) {
                const float2 pair = elements(total[r][c]);
                if (WHOLE || c * 8 < columns_left) {
                    out[c * 8] = U(pair.x);
                }
                if (WHOLE || c * 8 + 1 < columns_left) {
                    out[c * 8 + 1] = U(pair.y);
                }
            }
            out += 8 * O;
        }
    }
};

/// Bytes of threadgroup memory for staged tiles of x and w.
template <typename X, typename W, int BM, int BN>
constexpr int tile_bytes() {
    return BM * tile_stride<X>() * sizeof(X) + BN * tile_stride<W>() * sizeof(W);
}

}  // namespace tiny_llm_ext
