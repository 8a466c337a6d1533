// Vectorized add_lora. Adjacent rows with the same adapter, for example the tokens of a prompt,
// share loads of the adapter's matrices. The block size never affects the summation order.
#include "common/simd.h"
#include "src/add_lora/add_lora_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int LORA_ROWS = 4;     // rows of one adapter computed together
constexpr int LORA_RANKS = 4;    // dot products of a row computed together
constexpr int LORA_VECTORS = 2;  // vectors of outputs computed together

// Whether rows m … m + LORA_ROWS − 1 all precede `last` and use the same adapter.
inline bool is_block(const AddLoraJob& job, int64_t m, int64_t last) {
    for (int row = 1; row < LORA_ROWS; row++) {
        if (m + row >= last || job.adapter_ids[m + row] != job.adapter_ids[m]) {
            return false;
        }
    }
    return true;
}

// Computes ranks r … r + C − 1 of x · aᵀ for rows m … m + M − 1.
template <Format F, int M, int C>
void shrink_block(const AddLoraJob& job, int64_t m, int64_t r) {
    Floats sums[M][C] = {};
    for_vectors(job.I, [&](int64_t i, int count) {
        Floats x[M];
        for (int row = 0; row < M; row++) {
            x[row] = load_up_to(job.x, (m + row) * job.x_stride + i, F, count);
        }
        for (int c = 0; c < C; c++) {
            const Floats a = load_up_to(job.a, (r + c) * job.I + i, F, count);
            for (int row = 0; row < M; row++) {
                sums[row][c] = fma(x[row], a, sums[row][c]);
            }
        }
    });
    for (int row = 0; row < M; row++) {
        for (int c = 0; c < C; c++) {
            job.h[(m + row) * job.R + r + c] = sum(sums[row][c]);
        }
    }
}

template <Format F, int M>
void shrink_rows(const AddLoraJob& job, int64_t m) {
    const Ranks ranks = ranks_of(job, m);
    int64_t r = ranks.first;
    for (; r + LORA_RANKS <= ranks.last; r += LORA_RANKS) {
        shrink_block<F, M, LORA_RANKS>(job, m, r);
    }
    for (; r < ranks.last; r++) {
        shrink_block<F, M, 1>(job, m, r);
    }
}

template <Format F>
void shrink(const AddLoraJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last;) {
        if (is_block(job, m, last)) {
            shrink_rows<F, LORA_ROWS>(job, m);
            m += LORA_ROWS;
        } else {
            shrink_rows<F, 1>(job, m++);
        }
    }
}

// Computes C vectors of outputs, starting at output o, for rows m … m + M − 1. Only the first
// `count` elements of the last vector are outputs.
template <Format F, int M, int C>
void expand_block(const AddLoraJob& job, int64_t m, const Ranks& ranks, int64_t o, int count) {
    const auto count_of = [&](int c) { return c == C - 1 ? count : LANES; };
    Floats updates[M][C] = {};
    for (int64_t r = ranks.first; r < ranks.last; r++) {
        Floats b[C];
        for (int c = 0; c < C; c++) {
            b[c] = load_up_to(job.b, r * job.O + o + c * LANES, F, count_of(c));
        }
        for (int row = 0; row < M; row++) {
            const Floats h = splat(job.h[(m + row) * job.R + r]);
            for (int c = 0; c < C; c++) {
                updates[row][c] = fma(h, b[c], updates[row][c]);
            }
        }
    }
    for (int row = 0; row < M; row++) {
        for (int c = 0; c < C; c++) {
            const int64_t at = o + c * LANES;
            const Floats y = load_up_to(job.y, (m + row) * job.y_stride + at, F, count_of(c));
            store(job.out, (m + row) * job.O + at, F, y + updates[row][c], count_of(c));
        }
    }
}

template <Format F, int M>
void expand_rows(const AddLoraJob& job, int64_t m, const LoraTile& tile) {
    const Ranks ranks = ranks_of(job, m);
    const int64_t last = tile.last_output;
    int64_t o = tile.first_output;
    for (; o + LORA_VECTORS * LANES <= last; o += LORA_VECTORS * LANES) {
        expand_block<F, M, LORA_VECTORS>(job, m, ranks, o, LANES);
    }
    for (; o + LANES <= last; o += LANES) {
        expand_block<F, M, 1>(job, m, ranks, o, LANES);
    }
    if (o < last) {
        expand_block<F, M, 1>(job, m, ranks, o, static_cast<int>(last - o));
    }
}

template <Format F>
void expand(const AddLoraJob& job, const LoraTile& tile) {
    for (int64_t m = tile.first_row; m < tile.last_row;) {
        if (is_block(job, m, tile.last_row)) {
            expand_rows<F, LORA_ROWS>(job, m, tile);
            m += LORA_ROWS;
        } else {
            expand_rows<F, 1>(job, m++, tile);
        }
    }
}

}  // namespace

void lora_shrink(const AddLoraJob& job, int64_t first, int64_t last) {
    switch (job.format) {
        case Format::float32:
            return shrink<Format::float32>(job, first, last);
        case Format::float16:
            return shrink<Format::float16>(job, first, last);
        default:
            return shrink<Format::bfloat16>(job, first, last);
    }
}

void lora_expand(const AddLoraJob& job, const LoraTile& tile) {
    switch (job.format) {
        case Format::float32:
            return expand<Format::float32>(job, tile);
        case Format::float16:
            return expand<Format::float16>(job, tile);
        default:
            return expand<Format::bfloat16>(job, tile);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
