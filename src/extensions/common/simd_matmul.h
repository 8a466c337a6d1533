// A small matrix product in the caches: c += a · b, of float32 or of pairs of bfloat16 numbers.
//
// A *pair* is the two numbers of one 32-bit word (MULTIPLIES_PAIRS in simd.h): a · b of pairs is
// the sum of two products, and the inner index counts pairs. c is float32 either way.
//
// Its b is read in rows, so lanes are columns: every c is one chain of fused multiply-adds in the
// order of the inner index, and comes out the same however the others are blocked around it.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Rows × vectors of c that are kept in registers, beside a row of b: 6×4 + 4 of 32, 6×2 + 2 of 16.
constexpr int MATMUL_ROWS = 6;
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int MATMUL_VECTORS = 2;
#else
constexpr int MATMUL_VECTORS = 4;
#endif

// ROWS × (VECTORS · LANES) of c += a · b, over `inner`. Not inlined: sums and x take all registers,
// and what a caller keeps in some would be spilled in the innermost loop.
template <int ROWS, int VECTORS, typename Number>
__attribute__((noinline)) void multiply_add_block(int inner, const Number* a, int64_t a_stride,
                                                  const Number* b, int64_t b_stride, float* c,
                                                  int64_t c_stride) {
    typedef Number Vector __attribute__((vector_size(LANES * 4)));
    Floats sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            sums[r][v] = load_bits<Floats>(c + r * c_stride + v * LANES);
        }
    }
    for (int i = 0; i < inner; i++) {
        Vector x[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            x[v] = load_bits<Vector>(b + i * b_stride + v * LANES);
            if constexpr (ROWS > 1) {
                keep_in_register(x[v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const Vector y = splat(a[r * a_stride + i]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                sums[r][v] = fma(y, x[v], sums[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            store(c + r * c_stride, v * LANES, Format::float32, sums[r][v]);
        }
    }
}

// Up to MATMUL_ROWS rows: the templates for ROWS and fewer.
template <int ROWS, typename Number>
inline void multiply_add_rows(int rows, int columns, int inner, const Number* a, int64_t a_stride,
                              const Number* b, int64_t b_stride, float* c, int64_t c_stride) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) {
            multiply_add_rows<ROWS - 1>(rows, columns, inner, a, a_stride, b, b_stride, c,
                                        c_stride);
            return;
        }
    }
    int column = 0;
    for (; column + MATMUL_VECTORS * LANES <= columns; column += MATMUL_VECTORS * LANES) {
        multiply_add_block<ROWS, MATMUL_VECTORS>(inner, a, a_stride, b + column, b_stride,
                                                 c + column, c_stride);
    }
    for (; column < columns; column += LANES) {
        multiply_add_block<ROWS, 1>(inner, a, a_stride, b + column, b_stride, c + column, c_stride);
    }
}

/// c += a · b for a rows×inner, b inner×columns, c rows×columns; columns is a multiple of LANES.
/// Strides are those of rows. Numbers are float32, or int32_t for pairs.
template <typename Number>
inline void multiply_add(int rows, int columns, int inner, const Number* a, int64_t a_stride,
                         const Number* b, int64_t b_stride, float* c, int64_t c_stride) {
    for (int row = 0; row < rows; row += MATMUL_ROWS) {
        const int block = rows - row < MATMUL_ROWS ? rows - row : MATMUL_ROWS;
        multiply_add_rows<MATMUL_ROWS>(block, columns, inner, a + row * a_stride, a_stride, b,
                                       b_stride, c + row * c_stride, c_stride);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
