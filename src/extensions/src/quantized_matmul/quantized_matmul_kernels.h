// CPU kernels of quantized_matmul on raw pointers.
//
// Includes neither MLX nor templates of the standard library (see common/half.h).
#pragma once

#include <stdint.h>

#include "common/declare_simd.h"
#include "common/half.h"

namespace tiny_llm_ext {

struct QuantizedMatmulJob;

/// A kernel without a prepare step: computes outputs first_output … last_output − 1 of every row.
using Week4Matmul = void (*)(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output);

/// Arguments of a CPU kernel.
struct QuantizedMatmulJob {
    int64_t M, O, I;
    int group_size, bits;
    const uint32_t* b;         // O × (I·bits/32)
    const uint16_t* scales;    // O × (I/group_size)
    const uint16_t* biases;    // O × (I/group_size); nullptr for symmetric and e2m1 weights
    const uint16_t* a;         // M × I
    uint16_t* out;             // M × O
    Format scale_format;       // format of scales and biases
    Format format;             // format of a and out
    bool is_e2m1;              // 4-bit floating-point weights instead of integers
    bool prepacked;            // b, scales and biases: see common/prepacked.h
    int activation_bits = 16;  // 16, or 8: a is rounded to 8-bit integers
    Week4Matmul week4_kernel = nullptr;  // the kernel selected by TINY_LLM_MATMUL
    int64_t prefetch_distance = 0;       // in bytes, for quantized_matmul_prefetched
};

/// Reference kernel, three loops: computes outputs first_output … last_output − 1 of every row.
void quantized_matmul_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output);

/// Kernels of the course's Week 4, with the reference's interface, defined in
/// quantized_matmul_factored_reference.cpp and week4/.
void quantized_matmul_factored(const QuantizedMatmulJob& job, int64_t first_output,
                               int64_t last_output);
TINY_LLM_DECLARE_SIMD(void quantized_matmul_vectors(const QuantizedMatmulJob& job,
                                                    int64_t first_output, int64_t last_output);
                      void quantized_matmul_prepacked(const QuantizedMatmulJob& job,
                                                      int64_t first_output, int64_t last_output);
                      void quantized_matmul_prefetched(const QuantizedMatmulJob& job,
                                                       int64_t first_output, int64_t last_output);
                      void quantized_matmul_panels(const QuantizedMatmulJob& job,
                                                   int64_t first_output, int64_t last_output);
                      void quantized_matmul_pairs(const QuantizedMatmulJob& job,
                                                  int64_t first_output, int64_t last_output);)

/// Rows per pack that quantized_matmul_prepacked, _prefetched, _panels and _pairs read.
constexpr int PACK_ROWS = 32;

/// Reference kernel for e2m1 weights.
void quantized_matmul_e2m1_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                     int64_t last_output);

/// Values of the e2m1 format (1 sign bit, 2 exponent bits, 1 mantissa bit), doubled, so that all
/// are integers.
constexpr int8_t TWICE_E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/// A kernel with a prepare step, which converts the activations to the kernel's layout once per
/// job.
struct QuantizedMatmulKernel {
    /// Bytes of scratch for the converted activations.
    int64_t (*scratch)(const QuantizedMatmulJob& job);
    /// Converts rows first_row … last_row − 1. `scratch` is aligned to 64 bytes.
    void (*prepare)(const QuantizedMatmulJob& job, void* scratch, int64_t first_row,
                    int64_t last_row);
    /// Computes outputs of every row, with prepacked weights; the first output is a multiple of
    /// QUANTIZED_MATMUL_PANEL. The last pack may have fewer outputs than rows.
    void (*run)(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
                int64_t last_output);
    /// Rows per pack of the weights, a divisor of QUANTIZED_MATMUL_PANEL.
    int prepack_rows;
    /// Maximum rows per call, such that their activations stay in the cache; null: any number.
    int64_t (*max_rows)(const QuantizedMatmulJob& job) = nullptr;
};
/// Outputs per panel, the unit in which outputs are distributed over threads.
constexpr int64_t QUANTIZED_MATMUL_PANEL = 64;

/// On AVX-512 with BF16, only for 8-bit weights, 8-bit activations or float16.
TINY_LLM_DECLARE_SIMD(extern const QuantizedMatmulKernel quantized_matmul_fixed_point;)
#if defined(__x86_64__)
namespace avxvnni {  // the same kernel, compiled for AVX-VNNI
extern const QuantizedMatmulKernel quantized_matmul_fixed_point;
}
extern const QuantizedMatmulKernel quantized_matmul_avx512;  // for 4-bit weights, bfloat16
namespace amx {
extern const QuantizedMatmulKernel quantized_matmul_tiles;  // delegates few rows to fixed_point
}
#elif defined(__aarch64__)
namespace neondot {  // the same kernel, compiled for DotProd
extern const QuantizedMatmulKernel quantized_matmul_fixed_point;
}
#endif

}  // namespace tiny_llm_ext
