// flash_attention on the CPU: eval_cpu, which selects a kernel and distributes the rows over
// threads.
#include <algorithm>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/scratch.h"
#include "common/tasks.h"
#include "src/flash_attention/attention_split_kv.h"
#include "src/flash_attention/attention_week4.h"
#include "src/flash_attention/flash_attention.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

// [solution only]
TINY_LLM_DECLARE_SIMD(  //
    int64_t flash_attention_scratch(const FlashAttentionJob& job, int rows);
    void flash_attention(const FlashAttentionJob& job, int64_t b, int64_t h, int64_t first_row,
                         int rows, float* scratch);)
// [/solution only]

namespace {

int64_t no_flash_attention_scratch(const FlashAttentionJob&, int) { return 0; }

// Element offsets of the keys and values of one head of a sequence.
struct HeadAtStrides {
    int64_t key, value;  // of the first key and value
    int64_t key_stride, value_stride;

    static void find(const void* head, int64_t first, KeyTile& tile) {
        const auto& at = *static_cast<const HeadAtStrides*>(head);
        for (int i = 0; i < tile.count; i++) {
            tile.keys[i] = at.key + (first + i) * at.key_stride;
            tile.values[i] = at.value + (first + i) * at.value_stride;
        }
    }
};

// Up to QUERY_ROWS rows of a head, from first_row on, as the argument of a Week 4 kernel.
AttentionRows rows_of(const FlashAttentionJob& job, int64_t b, int64_t h, int64_t first_row,
                      const HeadAtStrides* head) {
    const int64_t group = job.H_q / job.H, rows = job.L * group;
    AttentionRows block = {
        .D = job.D,
        .scale = job.scale,
        .format = job.format,
        .query = job.query,
        .keys = job.key,
        .values = job.value,
        .out = job.out,
        .rows = static_cast<int>(std::min<int64_t>(QUERY_ROWS, rows - first_row)),
        .from = {},
        .to = {},
        .visible = {},
        .find = HeadAtStrides::find,
        .head = head};
    for (int i = 0; i < block.rows; i++) {
        const int64_t l = (first_row + i) / group, query_head = h * group + (first_row + i) % group;
        block.from[i] = row_offset(job.query_strides, b, query_head, l);
        block.to[i] = out_offset(job, b, query_head, l);
        block.visible[i] = visible_keys(job, b, l);
    }
    return block;
}

// Computes all rows with a Week 4 kernel.
void run_week4(const FlashAttentionJob& job) {
    std::vector<HeadAtStrides> heads;
    for (int64_t b = 0; b < job.B; b++) {
        for (int64_t h = 0; h < job.H; h++) {
            heads.push_back({row_offset(job.key_strides, b, h, 0),
                             row_offset(job.value_strides, b, h, 0), job.key_strides.token,
                             job.value_strides.token});
        }
    }
    std::vector<AttentionRows> blocks;
    for (int64_t head = 0; head < job.B * job.H; head++) {
        for (int64_t row = 0; row < job.L * (job.H_q / job.H); row += QUERY_ROWS) {
            blocks.push_back(rows_of(job, head / job.H, head % job.H, row, &heads[head]));
        }
    }
    attend_week4(blocks, job.week4_kernel);
}

void run(const FlashAttentionJob& job, InstructionSet set) {
    const bool uses_reference =
        job.week4_kernel.is_reference() || job.mask_kind != MaskKind::none || job.sinks != nullptr;
    if (job.week4_kernel.is_selected && !uses_reference) {
        run_week4(job);
        return;
    }
    auto kernel = flash_attention_reference;
    auto scratch_size = no_flash_attention_scratch;
    // [solution only]
    if (!job.week4_kernel.is_selected) {
        kernel = TINY_LLM_CHOOSE_SIMD(set, flash_attention, flash_attention_reference);
        scratch_size =
            TINY_LLM_CHOOSE_SIMD(set, flash_attention_scratch, no_flash_attention_scratch);
        if (job.format == Format::bfloat16) {
            kernel = TINY_LLM_CHOOSE_AMX(set, flash_attention, kernel);
            scratch_size = TINY_LLM_CHOOSE_AMX(set, flash_attention_scratch, scratch_size);
        }
    }
    // [/solution only]
    const int64_t rows = job.L * (job.H_q / job.H);
    const int64_t step = rows_per_block(rows, job.B * job.H * rows, num_threads());
    const int64_t blocks = (rows + step - 1) / step;
    const int64_t heads = job.B * job.H;
    parallel_for(blocks * heads, [&](int64_t chunk) {
        // Starts with the last rows: with a causal mask they see the most keys, and a long chunk
        // that started last would leave the other threads idle.
        const int64_t first = (blocks - 1 - chunk / heads) * step;
        const int count = static_cast<int>(std::min(step, rows - first));
        const int64_t head = chunk % heads;
        kernel(job, head / job.H, head % job.H, first, count,
               thread_scratch(scratch_size(job, count)));
    });
}

Strides strides_of(const mx::array& x) { return {x.strides(0), x.strides(1), x.strides(2)}; }

// Returns x if its rows are contiguous, regardless of its other strides; otherwise a copy.
mx::array with_contiguous_rows(const mx::array& x, mx::Stream stream) {
    return x.strides(3) == 1 || x.shape(3) == 1 ? x : row_contiguous(x, stream);
}

void set_mask(FlashAttentionJob& job, const mx::array& mask) {
    job.mask_kind = mask.dtype() == mx::bool_ ? MaskKind::boolean : MaskKind::additive;
    job.mask_format = format_of(mask.dtype());
    job.mask = mask.data<void>();
    job.mask_strides = strides_of(mask);
    job.mask_key_stride = mask.strides(3);
}

}  // namespace

void FlashAttention::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_by_token(out);
    if (out.size() == 0) {
        return;
    }
    const mx::array query = with_contiguous_rows(inputs[0], stream());
    const mx::array key = with_contiguous_rows(inputs[1], stream());
    const mx::array value = with_contiguous_rows(inputs[2], stream());
    FlashAttentionJob job = {
        .B = query.shape(0),
        .H_q = query.shape(1),
        .H = key.shape(1),
        .L = query.shape(2),
        .S = key.shape(2),
        .D = query.shape(3),
        .scale = scale_,
        .causal = causal_,
        .format = format_of(query.dtype()),
        .query = query.data<void>(),
        .key = key.data<void>(),
        .value = value.data<void>(),
        .out = out.data<void>(),
        .query_strides = strides_of(query),
        .key_strides = strides_of(key),
        .value_strides = strides_of(value),
        .mask_kind = MaskKind::none,
        .mask_format = Format::float32,
        .mask = nullptr,
        .mask_strides = {},
        .mask_key_stride = 0,
        .context_lens = nullptr,
        .sinks = nullptr,
        .week4_kernel = week4_attention(),
    };
    if (has_mask_) {
        set_mask(job, inputs[3]);
    }
    if (has_context_lens_) {
        job.context_lens = row_contiguous(inputs[has_mask_ ? 4 : 3], stream()).data<int32_t>();
    }
    if (has_sinks_) {
        job.sinks = row_contiguous(inputs.back(), stream()).data<float>();
    }
    add_task(stream(), [job, set = instruction_set()] { run(job, set); });
}

}  // namespace tiny_llm_ext
