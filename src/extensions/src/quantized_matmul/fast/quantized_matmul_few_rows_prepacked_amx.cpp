// quantized_matmul for up to four rows and prepacked weights, too few rows for AMX's tiles: each
// vector of b holds one 32-bit word of each of 16 outputs, one output per lane.
// quantized_matmul_few_rows_amx.cpp is for row-major weights.
//
// vpdpbusd adds the four products in a lane to the lane's sum. Because each lane is another output,
// all lanes multiply the same word of activations, which the instruction broadcasts from memory. No
// sum over lanes and no transpose is needed: a group of weights is a fixed number of consecutive
// vectors, after which its sums are scaled and added in float32.
//
// Four blocks of 16 outputs, called columns, are read in turns, because four sequential streams
// reach a higher bandwidth than one (benchmark/LOG.md).
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AVX512VNNI__)

#include "src/quantized_matmul/fast/byte_planes.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int MAX_COLUMNS = 4;
constexpr int WORD = 4;  // bytes

// Arguments for `count` columns, starting at output `first`.
struct Columns {
    const QuantizedMatmulJob& job;
    const PlanesLayout& layout;
    const char* activations;  // see PlanesLayout
    int64_t first;
    int count;

    int64_t column_bytes() const { return LANES * layout.row_bytes; }
    const char* b() const { return (const char*)job.b + first * layout.row_bytes; }
    // 16 scales or biases of a group.
    Floats by_group(const uint16_t* in, int column, int64_t group) const {
        const uint16_t* at = in + (first + column * LANES) * layout.groups + group * LANES;
        return (Floats)load_halves(at, job.scale_format);
    }
};

// sums[row][plane][column] += Σ q·bytes over one word of each column.
template <typename WeightFormat, int ROWS, int COLUMNS>
__attribute__((always_inline)) inline void multiply_word(const char* b, int64_t column_bytes,
                                                         const char* prefetch_address,
                                                         const char* a,
                                                         Ints (&sums)[ROWS][PLANES][COLUMNS]) {
    constexpr int PARTS = WeightFormat::PARTS;
    __m512i weights[COLUMNS][PARTS];
#pragma GCC unroll 4
    for (int column = 0; column < COLUMNS; column++) {
        _mm_prefetch(prefetch_address + column * column_bytes, _MM_HINT_T0);
        WeightFormat::unpack(_mm512_loadu_si512(b + column * column_bytes), weights[column]);
    }
#pragma GCC unroll 2
    for (int part = 0; part < PARTS; part++) {
#pragma GCC unroll 2
        for (int plane = 0; plane < PLANES; plane++) {
#pragma GCC unroll 4
            for (int row = 0; row < ROWS; row++) {
                int32_t four;
                memcpy(&four, a + ((part * PLANES + plane) * ROWS + row) * VECTOR, WORD);
#pragma GCC unroll 4
                for (int column = 0; column < COLUMNS; column++) {
                    Ints& sum = sums[row][plane][column];
                    sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, weights[column][part],
                                                    _mm512_set1_epi32(four));
                }
            }
        }
    }
}

// totals[row][first_column …] += one group of COLUMNS columns.
template <typename WeightFormat, int ROWS, int COLUMNS>
__attribute__((always_inline)) inline void add_group(const Columns& columns, int first_column,
                                                     int64_t g,
                                                     Floats (&totals)[ROWS][MAX_COLUMNS]) {
    const PlanesLayout& layout = columns.layout;
    const int64_t column_bytes = columns.column_bytes();
    const int segment = layout.group_bytes < VECTOR ? layout.group_bytes : VECTOR;
    Ints sums[ROWS][PLANES][COLUMNS] = {};
    for (int s = 0; s < layout.group_bytes; s += segment) {
        const int64_t byte = g * layout.group_bytes + s;  // within a row
        const char* a = columns.activations +
                        byte / VECTOR * (WeightFormat::PARTS * PLANES * ROWS * VECTOR) +
                        byte % VECTOR;
        const char* b = columns.b() + first_column * column_bytes + byte * LANES;
        const char* prefetch_address =
            address_to_prefetch(b, byte * LANES, column_bytes, columns.count);
        for (int w = 0; w < segment; w += WORD, b += VECTOR, prefetch_address += VECTOR) {
            multiply_word<WeightFormat, ROWS, COLUMNS>(b, column_bytes, prefetch_address, a + w,
                                                       sums);
        }
    }
    const float* step = (const float*)(columns.activations + layout.steps_offset) + g * ROWS;
    const float* sum = (const float*)(columns.activations + layout.sums_offset) + g * ROWS;
#pragma GCC unroll 4
    for (int column = 0; column < COLUMNS; column++) {
        Floats scale = columns.by_group(columns.job.scales, first_column + column, g), bias;
        if (columns.job.biases == nullptr) {
            make_affine(&scale, &bias, 1);
        } else {
            bias = columns.by_group(columns.job.biases, first_column + column, g);
        }
#pragma GCC unroll 4
        for (int row = 0; row < ROWS; row++) {
            const Ints exact = (sums[row][0][column] << 8) + sums[row][1][column];
            const Floats dot = __builtin_convertvector(exact, Floats);
            Floats& total = totals[row][first_column + column];
            total = fma(scale * splat(step[row]), dot, total);
            total = fma(bias, splat(sum[row]), total);
        }
    }
}

// Computes and stores the outputs of COLUMNS columns. The sums of four columns and more than two
// rows exceed the registers, so two columns of a group are multiplied at a time.
template <typename WeightFormat, int ROWS, int COLUMNS>
void run_columns(const Columns& columns) {
    constexpr int COLUMNS_AT_A_TIME = ROWS > 2 && COLUMNS > 2 ? 2 : COLUMNS;
    Floats totals[ROWS][MAX_COLUMNS] = {};
    for (int64_t g = 0; g < columns.layout.groups; g++) {
#pragma GCC unroll 2
        for (int column = 0; column < COLUMNS; column += COLUMNS_AT_A_TIME) {
            add_group<WeightFormat, ROWS, COLUMNS_AT_A_TIME>(columns, column, g, totals);
        }
    }
    const QuantizedMatmulJob& job = columns.job;
    for (int row = 0; row < ROWS; row++) {
        for (int column = 0; column < COLUMNS; column++) {
            store(job.out, row * job.O + columns.first + column * LANES, job.format,
                  totals[row][column]);
        }
    }
}

template <typename WeightFormat, int ROWS>
void run_rows(const QuantizedMatmulJob& job, const PlanesLayout& layout, const char* scratch,
              int64_t first_output, int64_t last_output) {
    constexpr int64_t OUTPUTS = MAX_COLUMNS * LANES;
    int64_t o = first_output;
    for (; o + OUTPUTS <= last_output; o += OUTPUTS) {
        run_columns<WeightFormat, ROWS, MAX_COLUMNS>({job, layout, scratch, o, MAX_COLUMNS});
    }
    for (; o < last_output; o += LANES) {
        run_columns<WeightFormat, ROWS, 1>({job, layout, scratch, o, 1});
    }
}

}  // namespace

void quantized_matmul_few_rows_prepacked(const QuantizedMatmulJob& job, const void* scratch,
                                         int64_t first_output, int64_t last_output) {
    const int rows = static_cast<int>(job.M);
    const PlanesLayout layout(job, rows);
    with_weight_format(job, [&]<typename WeightFormat>() {
        const auto run = rows == 1   ? run_rows<WeightFormat, 1>
                         : rows == 2 ? run_rows<WeightFormat, 2>
                         : rows == 3 ? run_rows<WeightFormat, 3>
                                     : run_rows<WeightFormat, 4>;
        run(job, layout, static_cast<const char*>(scratch), first_output, last_output);
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA

#endif  // the file is empty for other instruction sets
