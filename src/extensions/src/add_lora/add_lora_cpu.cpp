// add_lora on the CPU: kernel selection, and distribution of rows and outputs over threads.
#include <algorithm>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/add_lora/add_lora.h"
#include "src/add_lora/add_lora_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void lora_shrink(const AddLoraJob& job, int64_t first, int64_t last);
                      void lora_expand(const AddLoraJob& job, const LoraTile& tile);)

namespace {

constexpr int64_t ROW_TILE = 8, OUTPUT_TILE = 512;

}  // namespace

void AddLora::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows y = rows_of(inputs[0], stream());
    const Rows x = rows_of(inputs[1], stream());
    const mx::array a = row_contiguous(inputs[2], stream());
    const mx::array b = row_contiguous(inputs[3], stream());
    const mx::array rank_offsets = row_contiguous(inputs[4], stream());
    const mx::array adapter_ids = row_contiguous(inputs[5], stream());
    void* const memory = allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const int64_t M = adapter_ids.size(), R = a.shape(0);
    mx::array h({static_cast<int>(M), static_cast<int>(R)}, mx::float32, nullptr, {});
    allocate(h);
    add_temporary(stream(), h);
    const AddLoraJob job = {
        .M = M,
        .O = out.shape(-1),
        .I = inputs[1].shape(-1),
        .R = R,
        .num_adapters = rank_offsets.shape(0) - 1,
        .format = format_of(out.dtype()),
        .y = y.data,
        .x = x.data,
        .a = a.data<char>(),
        .b = b.data<char>(),
        .rank_offsets = rank_offsets.data<int32_t>(),
        .adapter_ids = adapter_ids.data<int32_t>(),
        .h = h.data<float>(),
        .out = memory,
        .y_stride = y.stride,
        .x_stride = x.stride,
    };
    const auto shrink = TINY_LLM_CHOOSE_SIMD(instruction_set(), lora_shrink, lora_shrink_reference);
    const auto expand = TINY_LLM_CHOOSE_SIMD(instruction_set(), lora_expand, lora_expand_reference);
    add_task(stream(), [job, shrink, expand] {
        const int64_t row_tiles = (job.M + ROW_TILE - 1) / ROW_TILE;
        parallel_for(row_tiles, [&](int64_t tile) {
            shrink(job, tile * ROW_TILE, std::min(job.M, (tile + 1) * ROW_TILE));
        });
        const int64_t output_tiles = (job.O + OUTPUT_TILE - 1) / OUTPUT_TILE;
        parallel_for(row_tiles * output_tiles, [&](int64_t chunk) {
            const int64_t row = chunk / output_tiles * ROW_TILE;
            const int64_t output = chunk % output_tiles * OUTPUT_TILE;
            expand(job, {row, std::min(job.M, row + ROW_TILE), output,
                         std::min(job.O, output + OUTPUT_TILE)});
        });
    });
}

}  // namespace tiny_llm_ext
