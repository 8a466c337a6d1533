// CPU kernels of add_lora on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct AddLoraJob {
    int64_t M, O, I, R, num_adapters;  // rows, outputs, inputs, sum of the adapters' ranks
    Format format;                     // format of y, x, a, b and out
    const void* y;                     // M × O, rows y_stride elements apart
    const void* x;                     // M × I, rows x_stride elements apart
    const void* a;                     // R × I
    const void* b;                     // R × O
    const int32_t* rank_offsets;       // num_adapters + 1
    const int32_t* adapter_ids;        // M
    float* h;                          // M × R: x · aᵀ, set only at the ranks of each row's adapter
    void* out;                         // M × O; may alias y
    int64_t y_stride, x_stride;
};

// Half-open range [first, last) of an adapter's ranks.
struct Ranks {
    int64_t first, last;
};

namespace {  // internal linkage: the linker must not merge copies (see common/half.h)

/// Rank range of row m's adapter; empty if the row has no adapter.
[[maybe_unused]] inline Ranks ranks_of(const AddLoraJob& job, int64_t m) {
    const int64_t adapter = job.adapter_ids[m];
    if (adapter < 0 || adapter >= job.num_adapters) {
        return {0, 0};
    }
    const int64_t first = job.rank_offsets[adapter], last = job.rank_offsets[adapter + 1];
    return {first < 0 ? 0 : first, last > job.R ? job.R : last};
}

}  // namespace

// Rows [first_row, last_row) and outputs [first_output, last_output).
struct LoraTile {
    int64_t first_row, last_row, first_output, last_output;
};

/// Reference kernels: shrink computes rows first … last − 1 of h, expand computes a tile of out.
/// The kernels in fast/add_lora_simd.cpp have the same interface.
void lora_shrink_reference(const AddLoraJob& job, int64_t first, int64_t last);
void lora_expand_reference(const AddLoraJob& job, const LoraTile& tile);

}  // namespace tiny_llm_ext
