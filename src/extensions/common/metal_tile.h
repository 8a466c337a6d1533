// A tile of a matrix multiplication out = x · wᵀ in a threadgroup's matrix units: what matmul and
// quantized_matmul share. For Metal only.
//
// A threadgroup computes BM rows × BN outputs. For every BK numbers of the rows it stages BM rows
// of x and BN rows of w in threadgroup memory (RowStager, or what unpacks weights), and each of
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

/// The two neighbours of an 8×8 matrix that this lane holds: (row, column) and (row, column + 1).
/// Lanes of one row differ in bits 0 and 3 of their index.
struct Place {
    int row, column;

    explicit Place(uint lane) thread {
        const int quad = int(lane) / 4;
        row = (quad & 4) + int(lane) / 2 % 4;
        column = (quad & 2) * 2 + int(lane) % 2 * 2;
    }
};

inline thread float2& elements(thread simdgroup_float8x8& matrix) {
    return reinterpret_cast<thread float2&>(matrix.thread_elements());
}

/// Stages ROWS rows of numbers, TILE_K of each at a time, in 16 bytes a thread and round. A thread
/// always has the same rows and columns of the tile, so that pointers only move along.
///
/// Beyond rows_left rows and numbers_left numbers of them the tile is zero, and nothing is read.
/// WHOLE: all 16 bytes are in the row or none, and aligned.
template <typename T, int ROWS, int THREADS, bool WHOLE>
struct RowStager {
    enum {
        NUMBERS = 16 / sizeof(T),
        AT_ONCE = THREADS * NUMBERS / TILE_K,  // rows
        ROUNDS = ROWS / AT_ONCE,
    };
    static_assert(ROUNDS * AT_ONCE == ROWS, "threads copy whole rows, several times");

    device const T* from[ROUNDS];  // this thread's next numbers in each round's row
    bool has[ROUNDS];              // whether there is that row
    threadgroup T* to;             // the place of the first round's numbers
    int left;                      // numbers from this thread's first on

    /// rows: the first row's first number, row_stride numbers from one row to the next.
    /// repeats: beyond the last row that one is staged again, instead of zeros. Nothing uses such
    /// rows; zeros cost a question in each step, but save reading what is seldom there.
    RowStager(threadgroup T* tile, device const T* rows, long row_stride, int rows_left,
              int numbers_left, uint thread_index, bool repeats = false) thread {
        const int first = int(thread_index) / (TILE_K / NUMBERS);
        const int column = int(thread_index) % (TILE_K / NUMBERS) * NUMBERS;
        for (int round = 0; round < ROUNDS; round++) {
            const int row = first + round * AT_ONCE;
            from[round] = rows + min(row, rows_left - 1) * row_stride + column;
            has[round] = repeats || row < rows_left;
        }
        to = tile + first * tile_stride<T>() + column;
        left = numbers_left - column;
    }

    /// The next TILE_K numbers, which come after `done` others. sums, if wanted: ROUNDS of them;
    /// what this thread copies in each round is added.
    void stage(int done, thread float* sums = nullptr) thread {
        const bool goes_on = done < left;
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            threadgroup T* place = to + round * AT_ONCE * tile_stride<T>();
            T numbers[NUMBERS];
            if (WHOLE) {
                thread uint4& all = reinterpret_cast<thread uint4&>(numbers);
                all = has[round] && goes_on ? *(device const uint4*)from[round] : uint4(0, 0, 0, 0);
                *(threadgroup uint4*)place = all;
            } else {
                for (int i = 0; i < NUMBERS; i++) {
                    numbers[i] = has[round] && done + i < left ? from[round][i] : T(0.0f);
                    place[i] = numbers[i];
                }
            }
            for (int i = 0; sums != nullptr && i < NUMBERS; i++) {
                sums[round] += float(numbers[i]);
            }
            from[round] += TILE_K;
        }
    }
};

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
        multiply_to(part, x, w);
    }

    /// The same, added to other sums.
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

    /// A part of the numbers is complete: total += part, part = 0.
    void finish_part() thread {
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < COLUMNS; c++) {
                add_matrix(total[r][c], part[r][c]);
                part[r][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            }
        }
    }

    /// Writes the totals that are inside of the matrix to out (M × O), from the registers: a lane
    /// has two neighbours of each 8×8.
    template <typename U>
    void store(device U* out, long O, int rows_left, int columns_left, uint lane) thread {
        const Place place(lane);
        const int row = first_row + place.row, column = first_column + place.column;
        out += row * O + column;
        if (columns_left >= BN) {
            store_rows<true>(out, O, rows_left - row, BN);
        } else {
            store_rows<false>(out, O, rows_left - row, columns_left - column);
        }
    }

    /// out: where this lane's first number goes. WHOLE: all numbers of a row do.
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
