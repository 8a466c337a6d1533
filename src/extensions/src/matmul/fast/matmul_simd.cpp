// Vectorized matmul: dot products of a block of rows of a with a block of rows of b.
//
// Both matrices are contiguous along the inner dimension, so no elements are rearranged. A block of
// ROWS × COLUMN_BLOCK dot products keeps its sums in registers, one vector each, and uses every
// loaded vector several times. At the end, the lanes of each sum are added in a fixed order.
//
// The block size affects memory traffic, never the summation order.
#include "common/simd.h"
#include "src/matmul/matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// The sums must fit in the vector registers: 16 with AVX2, 32 with the other instruction sets.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int ROWS = 2;
#else
constexpr int ROWS = 4;
#endif
constexpr int COLUMN_BLOCK = 4;
constexpr int64_t AHEAD = 8192;  // prefetch distance in bytes

// One step of a dot product: STEP elements are loaded, multiplied and added.
template <Format F>
struct Dot {
    using Vector = Floats;
    static constexpr int STEP = LANES;
    static Vector load_step(const void* array, int64_t i) { return load(array, i, F); }
    static Vector load_step(const void* array, int64_t i, int count) {
        return load(array, i, F, count);
    }
    static Floats add(Floats sum, Vector a, Vector b) { return fma(a, b, sum); }
};

#if defined(__AVX512BF16__)
// Two products per lane: vdpbf16ps, which flushes subnormals to zero.
template <>
struct Dot<Format::bfloat16> {
    using Vector = __m512i;
    static constexpr int STEP = 2 * LANES;
    static Vector load_step(const void* array, int64_t i) {
        return _mm512_loadu_si512(static_cast<const uint16_t*>(array) + i);
    }
    static Vector load_step(const void* array, int64_t i, int count) {
        return _mm512_maskz_loadu_epi16((1u << count) - 1, static_cast<const uint16_t*>(array) + i);
    }
    static Floats add(Floats sum, Vector a, Vector b) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
    }
};
#endif

inline void prefetch(const void* array, int64_t i, Format format) {
    const int64_t bytes = format == Format::float32 ? 4 : 2;
    __builtin_prefetch(static_cast<const char*>(array) + i * bytes + AHEAD);
}

// Computes R × C outputs, starting at row m and output o.
template <Format F, int R, int C>
void multiply_block(const MatmulJob& job, int64_t m, int64_t o) {
    using D = Dot<F>;
    Floats sums[R][C] = {};
    typename D::Vector a[R];
    int64_t i = 0;
    for (; i + D::STEP <= job.I; i += D::STEP) {
        for (int r = 0; r < R; r++) {
            a[r] = D::load_step(job.a, (m + r) * job.a_stride + i);
        }
        for (int c = 0; c < C; c++) {
            const int64_t at = (o + c) * job.b_stride + i;
            if (R == 1) {
                prefetch(job.b, at, F);
            }
            const auto b = D::load_step(job.b, at);
            for (int r = 0; r < R; r++) {
                sums[r][c] = D::add(sums[r][c], a[r], b);
            }
        }
    }
    if (const int rest = static_cast<int>(job.I - i); rest > 0) {
        for (int r = 0; r < R; r++) {
            for (int c = 0; c < C; c++) {
                sums[r][c] =
                    D::add(sums[r][c], D::load_step(job.a, (m + r) * job.a_stride + i, rest),
                           D::load_step(job.b, (o + c) * job.b_stride + i, rest));
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int c = 0; c < C; c++) {
            store_element(job.out, (m + r) * job.O + o + c, F, sum(sums[r][c]));
        }
    }
}

// Multiplies the tile's rows of a by C rows of b, which stay in the L1 cache.
template <Format F, int C>
void multiply_columns(const MatmulJob& job, const MatmulTile& tile, int64_t o) {
    int64_t m = tile.first_row;
    for (; m + ROWS <= tile.last_row; m += ROWS) {
        multiply_block<F, ROWS, C>(job, m, o);
    }
    for (; m < tile.last_row; m++) {
        multiply_block<F, 1, C>(job, m, o);
    }
}

template <Format F>
void multiply_tile(const MatmulJob& job, const MatmulTile& tile) {
    int64_t o = tile.first_output;
    for (; o + COLUMN_BLOCK <= tile.last_output; o += COLUMN_BLOCK) {
        multiply_columns<F, COLUMN_BLOCK>(job, tile, o);
    }
    for (; o < tile.last_output; o++) {
        multiply_columns<F, 1>(job, tile, o);
    }
}

}  // namespace

void matmul(const MatmulJob& job, const MatmulTile& tile) {
    switch (job.format) {
        case Format::float32:
            return multiply_tile<Format::float32>(job, tile);
        case Format::float16:
            return multiply_tile<Format::float16>(job, tile);
        default:
            return multiply_tile<Format::bfloat16>(job, tile);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
