// quantized_embedding on the CPU. An engine step looks up one row of a few kilobytes per token,
// which is too little to need a vector kernel.
#include <cmath>

#include "common/checks.h"
#include "common/prepacked.h"
#include "common/rows.h"
#include "mlx/backend/cpu/encoder.h"
#include "src/quantized_embedding/quantized_embedding.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

struct Job {
    int64_t N, V, E;
    int group_size, bits;
    int64_t pack_rows;       // rows per pack of the table
    Format format;           // format of scales, biases and out
    bool is_e2m1;            // 4-bit floating-point weights instead of integers
    bool is_signed;          // whether the ids are int32
    const uint32_t* ids;     // N
    const void* scales;      // V × (E/group_size)
    const void* biases;      // V × (E/group_size); nullptr for symmetric and e2m1 weights
    const uint32_t* weight;  // V × (E·bits/32)
    void* out;               // N × E
};

// Table row of id n, or −1 if out of range.
int64_t row_of(const Job& job, int64_t n) {
    int64_t id = job.ids[n];
    if (job.is_signed) {
        id = static_cast<int32_t>(job.ids[n]);
        id = id < 0 ? id + job.V : id;
    }
    return id >= 0 && id < job.V ? id : -1;
}

// Offset of an element of weight, scales or biases, with `columns` elements per row.
int64_t element_offset(const Job& job, int64_t row, int64_t column, int64_t columns) {
    const int64_t first = row / job.pack_rows * job.pack_rows;
    return first * columns + column * job.pack_rows + row % job.pack_rows;
}

void look_up(const Job& job, int64_t n) {
    const int64_t row = row_of(job, n);
    if (row < 0) {
        for (int64_t e = 0; e < job.E; e++) {
            store_element(job.out, n * job.E + e, job.format, NAN);
        }
        return;
    }
    const uint32_t mask = (1u << job.bits) - 1;
    const int64_t words_per_group = job.group_size * job.bits / 32;
    const int64_t groups = job.E / job.group_size;
    int64_t i = n * job.E;  // next element of out
    for (int64_t g = 0; g < groups; g++) {
        const int64_t group = element_offset(job, row, g, groups);
        const float scale = load_element(job.scales, group, job.format);
        float bias = job.is_e2m1 ? 0 : -scale * static_cast<float>(1 << (job.bits - 1));
        if (job.biases != nullptr) {
            bias = load_element(job.biases, group, job.format);
        }
        for (int64_t w = g * words_per_group; w < (g + 1) * words_per_group; w++) {
            const uint32_t word = job.weight[element_offset(job, row, w, groups * words_per_group)];
            for (int shift = 0; shift < 32; shift += job.bits) {
                const uint32_t code = word >> shift & mask;
                const float q = job.is_e2m1 ? 0.5f * TWICE_E2M1[code] : static_cast<float>(code);
                store_element(job.out, i++, job.format, round_to(q * scale, job.format) + bias);
            }
        }
    }
}

}  // namespace

void QuantizedEmbedding::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const Job job = {
        .N = static_cast<int64_t>(inputs[0].size()),
        .V = matrix_rows(inputs[3]),
        .E = out.shape(-1),
        .group_size = group_size_,
        .bits = bits_,
        .pack_rows = pack_rows(inputs[3]),
        .format = format_of(out.dtype()),
        .is_e2m1 = !has_biases_,
        .is_signed = inputs[0].dtype() == mx::int32,
        .ids = row_contiguous(inputs[0], stream()).data<uint32_t>(),
        .scales = row_contiguous(inputs[1], stream()).data<char>(),
        .biases = has_biases_ && inputs[2].size() > 0
                      ? row_contiguous(inputs[2], stream()).data<char>()
                      : nullptr,
        .weight = row_contiguous(inputs[3], stream()).data<uint32_t>(),
        .out = memory,
    };
    mx::cpu::get_command_encoder(stream()).dispatch([job] {
        for_rows(job.N, job.E, [&](int64_t first, int64_t last) {
            for (int64_t n = first; n < last; n++) {
                look_up(job, n);
            }
        });
    });
}

}  // namespace tiny_llm_ext
