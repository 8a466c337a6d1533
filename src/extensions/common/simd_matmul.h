// Matmul of small matrices in the cache: c += a · b, for float32 or pairs of bfloat16.
//
// A *pair* is two bfloat16 values in one 32-bit integer (USES_BF16_DOT in simd.h). The product of
// two pairs is the sum of their two elementwise products, and the inner dimension counts pairs. c
// is always float32.
//
// Rows of b are loaded as vectors, so each lane computes one column of c. Every element of c is one
// chain of fused multiply-adds in the order of the inner index, so its bits do not depend on the
// sizes of the blocks.
#pragma once

#include "common/simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Block of c that is kept in registers: rows × vectors. Together with the vectors of one row of b,
// it takes 6×4 + 4 of 32 registers, or 6×2 + 2 of 16.
constexpr int MATMUL_ROWS = 6;
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int MATMUL_VECTORS = 2;
#else
constexpr int MATMUL_VECTORS = 4;
#endif

// c += a · b for ROWS × (VECTORS · LANES) elements of c. Not inlined, because `sums` and `x`
// use all registers: the caller's live values would be spilled in the innermost loop.
template <int ROWS, int VECTORS, typename Element>
__attribute__((noinline)) void multiply_add_block(int inner, const Element* a, int64_t a_stride,
                                                  const Element* b, int64_t b_stride, float* c,
                                                  int64_t c_stride) {
    typedef Element Vector __attribute__((vector_size(LANES * 4)));
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

// Dispatches up to MATMUL_ROWS rows to the template for that row count.
template <int ROWS, typename Element>
inline void multiply_add_rows(int rows, int columns, int inner, const Element* a, int64_t a_stride,
                              const Element* b, int64_t b_stride, float* c, int64_t c_stride) {
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
/// Strides are row strides. Elements are float32, or int32_t for pairs.
template <typename Element>
inline void multiply_add(int rows, int columns, int inner, const Element* a, int64_t a_stride,
                         const Element* b, int64_t b_stride, float* c, int64_t c_stride) {
    for (int row = 0; row < rows; row += MATMUL_ROWS) {
        const int block = rows - row < MATMUL_ROWS ? rows - row : MATMUL_ROWS;
        multiply_add_rows<MATMUL_ROWS>(block, columns, inner, a + row * a_stride, a_stride, b,
                                       b_stride, c + row * c_stride, c_stride);
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
