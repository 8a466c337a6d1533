// The CPU kernels of quantized_matmul, as plain functions on plain memory.
//
// Nothing of MLX or of the standard library's templates is included here: a file that is compiled
// for newer instructions would leave its copies of inline functions to the whole module, and an
// older machine would stumble over them.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct QuantizedMatmulJob;

/// A kernel without preparations: computes outputs first_output … last_output − 1 of every row.
using Week4Matmul = void (*)(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output);

/// Everything a CPU kernel needs to know.
struct QuantizedMatmulJob {
    int64_t M, O, I;
    int group_size, bits;
    const uint32_t* b;           // O × (I·bits/32)
    const uint16_t* scales;      // O × (I/group_size)
    const uint16_t* biases;      // O × (I/group_size); nullptr for floating-point numbers of 4 bits
    const uint16_t* a;           // M × I
    uint16_t* out;               // M × O
    Format scale_format;         // of scales and biases
    Format format;               // of a and out
    bool prepacked;              // b, scales and biases: see common/prepacked.h
    Week4Matmul step = nullptr;  // the kernel that was asked for: quantized_matmul_week4.h
    int64_t fetch_ahead = 0;     // bytes, for quantized_matmul_prefetched
};

/// The reference: three loops. Computes outputs first_output … last_output − 1 of every row.
void quantized_matmul_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output);

/// The same, Week 4's: see the files of these names.
void quantized_matmul_factored(const QuantizedMatmulJob& job, int64_t first_output,
                               int64_t last_output);
#if defined(__x86_64__)
namespace avx2 {
void quantized_matmul_vectors(const QuantizedMatmulJob& job, int64_t first_output,
                              int64_t last_output);
void quantized_matmul_prepacked(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output);
void quantized_matmul_prefetched(const QuantizedMatmulJob& job, int64_t first_output,
                                 int64_t last_output);
void quantized_matmul_panels(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output);
void quantized_matmul_pairs(const QuantizedMatmulJob& job, int64_t first_output,
                            int64_t last_output);
}  // namespace avx2
namespace avx512 {
void quantized_matmul_vectors(const QuantizedMatmulJob& job, int64_t first_output,
                              int64_t last_output);
void quantized_matmul_prepacked(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output);
void quantized_matmul_prefetched(const QuantizedMatmulJob& job, int64_t first_output,
                                 int64_t last_output);
void quantized_matmul_panels(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output);
void quantized_matmul_pairs(const QuantizedMatmulJob& job, int64_t first_output,
                            int64_t last_output);
}  // namespace avx512
#elif defined(__aarch64__)
namespace neon {
void quantized_matmul_vectors(const QuantizedMatmulJob& job, int64_t first_output,
                              int64_t last_output);
void quantized_matmul_prepacked(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output);
void quantized_matmul_prefetched(const QuantizedMatmulJob& job, int64_t first_output,
                                 int64_t last_output);
void quantized_matmul_panels(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output);
void quantized_matmul_pairs(const QuantizedMatmulJob& job, int64_t first_output,
                            int64_t last_output);
}  // namespace neon
#endif

/// How many rows of weights quantized_matmul_prepacked and those below it want prepacked.
constexpr int PACK_ROWS = 32;

/// The reference for weights without biases.
void quantized_matmul_e2m1_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                     int64_t last_output);

/// Floating-point numbers of 4 bits: a bit for the sign, two for the exponent, one for the
/// mantissa. Twice a number is whole.
constexpr int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// The other kernels work on activations that were laid out anew once, before the threads start.
struct QuantizedMatmulKernel {
    /// How many bytes that takes.
    int64_t (*scratch)(const QuantizedMatmulJob& job);
    /// Does rows first_row … last_row − 1 of it. `scratch` is aligned to 64 bytes.
    void (*prepare)(const QuantizedMatmulJob& job, void* scratch, int64_t first_row,
                    int64_t last_row);
    /// Computes outputs of every row, from one that is a multiple of QUANTIZED_MATMUL_PANEL.
    void (*run)(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
                int64_t last_output);
    /// How many rows of weights it wants prepacked; it reads rows as they are, too. 0: only
    /// those.
    int prepack_rows;
};
constexpr int64_t QUANTIZED_MATMUL_PANEL = 64;

#if defined(__x86_64__)
namespace avx2 {
extern const QuantizedMatmulKernel quantized_matmul_avx2_neon;
}
extern const QuantizedMatmulKernel quantized_matmul_avx512;
namespace amx {
extern const QuantizedMatmulKernel quantized_matmul_tiles;     // leaves a few rows to the next
extern const QuantizedMatmulKernel quantized_matmul_few_rows;  // of integers: one or two
/// Its `run`, where weights are prepacked.
void quantized_matmul_few_rows_prepacked(const QuantizedMatmulJob& job, const void* scratch,
                                         int64_t first_output, int64_t last_output);
}  // namespace amx
#elif defined(__aarch64__)
namespace neon {
extern const QuantizedMatmulKernel quantized_matmul_avx2_neon;
}
#endif

}  // namespace tiny_llm_ext
