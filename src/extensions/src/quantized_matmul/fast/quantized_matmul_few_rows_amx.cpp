// quantized_matmul for one or two rows, bound by reading the weights: multiplies bytes in vector
// registers with AVX-512 VNNI, which every machine with AMX has.
//
// Arithmetic and results are bit-identical to quantized_matmul_fixed_point_simd.cpp; byte_planes.h
// converts activations to bytes. A *panel* is 16 outputs, whose rows of b are consecutive in
// memory.
//
// 1. multiply: four rows of b side by side, vector by vector. vpdpbusd accumulates four products
//    per 32-bit lane; the lanes of four outputs are folded into one vector, their *quads*: lane 4q
//    + o is output o's sum over the q-th 16 bytes.
// 2. add: the quads of 16 outputs are transposed and summed over each group: Σ q·A, one output per
//    lane. The rest is float32 arithmetic, group by group.
//
// The access pattern determines the speed. Rows 0–3 are read along with rows 8–11, then 4–7 with
// 12–15: two sequential streams suit the hardware prefetcher best, and the sums of four rows of
// each fit in registers. Each cache line read prefetches the line one panel ahead into the L2
// cache. Measured bandwidth and rejected alternatives: benchmark/LOG.md.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AVX512VNNI__)

#include "src/quantized_matmul/fast/byte_planes.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int OUTPUTS = 16;  // per panel
constexpr int QUAD = 4;      // outputs read side by side, or lanes per output
constexpr int QUADS = OUTPUTS / QUAD;
constexpr int QUAD_BYTES = VECTOR / QUADS;
static_assert(OUTPUTS == LANES);

// --- 1. multiply --------------------------------------------------------------------------------

// sums + Σ unsigned_bytes · signed_bytes over the four bytes of each lane.
inline Ints multiply_add(Ints sums, __m512i unsigned_bytes, const char* signed_bytes) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, unsigned_bytes,
                                     _mm512_loadu_si512(signed_bytes));
}

// Lane 4q + o of the result is the sum of lanes 4q … 4q + 3 of x[o].
inline Ints fold(const Ints (&x)[QUAD]) {
    const auto fold_two = [](Ints a, Ints b) __attribute__((always_inline)) {
        return (Ints)_mm512_unpacklo_epi32((__m512i)a, (__m512i)b) +
               (Ints)_mm512_unpackhi_epi32((__m512i)a, (__m512i)b);
    };
    const __m512i low = (__m512i)fold_two(x[0], x[1]), high = (__m512i)fold_two(x[2], x[3]);
    return (Ints)_mm512_unpacklo_epi64(low, high) + (Ints)_mm512_unpackhi_epi64(low, high);
}

// Four rows of b, row_bytes apart, starting at a given byte.
struct FourRows {
    const char* b;
    int64_t row_bytes;
    const char* prefetch_address;
};

// Multiplies the next vector of four rows of b with all rows of activations. words: mask of the
// words within the rows.
template <typename WeightFormat, int ROWS>
__attribute__((always_inline)) inline void multiply_vector(FourRows& from, __mmask16 words,
                                                           const char* a, Ints* quads,
                                                           int64_t row_quads) {
    constexpr int PARTS = WeightFormat::PARTS;
    __m512i weights[QUAD][PARTS];
#pragma GCC unroll 4
    for (int o = 0; o < QUAD; o++) {
        _mm_prefetch(from.prefetch_address + o * VECTOR, _MM_HINT_T1);
        WeightFormat::unpack(_mm512_maskz_loadu_epi32(words, from.b + o * from.row_bytes),
                             weights[o]);
    }
    from.b += VECTOR;
    from.prefetch_address += QUAD * VECTOR;
#pragma GCC unroll 2
    for (int r = 0; r < ROWS; r++) {
        Ints sums[QUAD];
#pragma GCC unroll 4
        for (int o = 0; o < QUAD; o++) {
            Ints sum = {};
#pragma GCC unroll 2
            for (int plane = 0; plane < PLANES; plane++) {
                sum <<= 8;
#pragma GCC unroll 2
                for (int part = 0; part < PARTS; part++) {
                    sum = multiply_add(sum, weights[o][part],
                                       a + ((part * PLANES + plane) * ROWS + r) * VECTOR);
                }
            }
            sums[o] = sum;
        }
        quads[r * row_quads] = fold(sums);
    }
}

// Quads of a panel: rows × vectors × QUADS.
template <typename WeightFormat, int ROWS>
void multiply_panel(const PlanesLayout& layout, const char* b, const char* a, Ints* quads) {
    constexpr int HALF = QUADS / 2;
    const int64_t vectors = layout.vectors, row_bytes = layout.row_bytes;
    const int64_t left = row_bytes - (vectors - 1) * VECTOR;  // bytes in the last vector
    const auto last_words = static_cast<__mmask16>((1u << left / 4) - 1);
    for (int quad = 0; quad < HALF; quad++) {
        const int64_t first_offset = quad * QUAD * row_bytes,
                      second_offset = (quad + HALF) * QUAD * row_bytes;
        const char* next_panel = b + OUTPUTS * row_bytes;
        FourRows first = {b + first_offset, row_bytes, next_panel + first_offset};
        FourRows second = {b + second_offset, row_bytes, next_panel + second_offset};
        for (int64_t v = 0; v < vectors; v++) {
            const __mmask16 words = v + 1 < vectors ? 0xffff : last_words;
            const char* activations = a + v * (WeightFormat::PARTS * PLANES * ROWS * VECTOR);
            Ints* to = quads + v * QUADS + quad;
            multiply_vector<WeightFormat, ROWS>(first, words, activations, to, vectors * QUADS);
            multiply_vector<WeightFormat, ROWS>(second, words, activations, to + HALF,
                                                vectors * QUADS);
        }
    }
}

// --- 2. add -------------------------------------------------------------------------------------

// Transposes the quads of one vector of b: quad q of all 16 outputs.
inline void transpose_quads(Ints* quads) {
    const __m512i* x = (const __m512i*)quads;
    const __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44);  // quads 0 and 1 of outputs 0–7
    const __m512i b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee);  // quads 2 and 3
    const __m512i d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    quads[0] = (Ints)_mm512_shuffle_i32x4(a, b, 0x88);
    quads[1] = (Ints)_mm512_shuffle_i32x4(a, b, 0xdd);
    quads[2] = (Ints)_mm512_shuffle_i32x4(c, d, 0x88);
    quads[3] = (Ints)_mm512_shuffle_i32x4(c, d, 0xdd);
}

// total += (scale · step) · Σ q·A + bias · (step · Σ A), group after group.
Floats add_groups(const PlanesLayout& layout, const Floats* scales, const Floats* biases,
                  const char* scratch, int row, Ints* quads) {
    for (int64_t v = 0; v < layout.vectors; v++) {
        transpose_quads(quads + v * QUADS);
    }
    const float* step = (const float*)(scratch + layout.steps_offset) + row;
    const float* sum = (const float*)(scratch + layout.sums_offset) + row;
    const int group_quads = layout.group_bytes / QUAD_BYTES;
    Floats total = {};
    for (int64_t g = 0; g < layout.groups; g++, step += layout.rows, sum += layout.rows) {
        Ints dot = {};
        for (int q = 0; q < group_quads; q++) {
            dot += quads[g * group_quads + q];
        }
        total = fma(scales[g] * splat(*step), __builtin_convertvector(dot, Floats), total);
        total = fma(biases[g], splat(*sum), total);
    }
    return total;
}

// --- the kernel ---------------------------------------------------------------------------------

PlanesLayout few_rows_layout(const QuantizedMatmulJob& job) {
    return PlanesLayout(job, static_cast<int>(job.M));
}

int64_t few_rows_scratch_bytes(const QuantizedMatmulJob& job) { return few_rows_layout(job).bytes; }

void prepare_few_rows(const QuantizedMatmulJob& job, void* scratch, int64_t first_row,
                      int64_t last_row) {
    prepare_rows(job, few_rows_layout(job), static_cast<char*>(scratch), first_row, last_row);
}

void run_few_rows(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
                  int64_t last_output) {
    if (job.prepacked) {
        quantized_matmul_few_rows_prepacked(job, scratch, first_output, last_output);
        return;
    }
    const PlanesLayout layout = few_rows_layout(job);
    const auto activations = static_cast<const char*>(scratch);
    const int64_t groups = layout.groups, row_quads = layout.vectors * QUADS;
    const int64_t vectors = 2 * groups + layout.rows * row_quads;
    auto memory = static_cast<Floats*>(
        _mm_malloc(vectors * sizeof(Floats) + OUTPUTS * layout.row_bytes, sizeof(Floats)));
    Floats* scales = memory;
    Floats* biases = scales + groups;
    Ints* quads = (Ints*)(biases + groups);
    void* last_rows = memory + vectors;
    const auto multiply = [&](const char* b) {
        with_weight_format(job, [&]<typename WeightFormat>() {
            const auto run = layout.rows == 1 ? multiply_panel<WeightFormat, 1>
                                              : multiply_panel<WeightFormat, 2>;
            run(layout, b, activations, quads);
        });
    };
    for (int64_t o = first_output; o < last_output; o += OUTPUTS) {
        const char* b = (const char*)job.b + o * layout.row_bytes;
        int outputs = OUTPUTS;
        if (last_output - o < OUTPUTS) {  // rows of b past the last output must not be read
            outputs = static_cast<int>(last_output - o);
            b = (const char*)memcpy(last_rows, b, outputs * layout.row_bytes);
        }
        multiply(b);
        widen_columns(job.scales + o * groups, groups, outputs, groups, job.scale_format,
                      (float*)scales, LANES);
        if (job.biases != nullptr) {
            widen_columns(job.biases + o * groups, groups, outputs, groups, job.scale_format,
                          (float*)biases, LANES);
        } else {
            make_affine(scales, biases, groups);
        }
        const auto total_of = [&](int row) {
            return add_groups(layout, scales, biases, activations, row, quads + row * row_quads);
        };
        for (int r = 0; r < layout.rows; r++) {
            store(job.out, r * job.O + o, job.format, total_of(r), outputs);
        }
    }
    _mm_free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_few_rows = {few_rows_scratch_bytes, prepare_few_rows,
                                                         run_few_rows,
                                                         /*prepack_rows=*/LANES};

}  // namespace tiny_llm_ext::TINY_LLM_ISA

#endif  // the file is empty for other instruction sets
