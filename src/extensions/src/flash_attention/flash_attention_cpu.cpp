// flash_attention on the CPU: the readable reference, and who runs which kernel.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
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

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// query · key · scale + mask, for one row and one key.
float score(const FlashAttentionJob& job, int64_t b, int64_t head, int64_t l, int64_t s) {
    // [task 2.4.2 score]
    float added = 0;
    if (job.mask_kind != MaskKind::none) {
        added = mask_element(job, b, head, l, s);
        if (added == -INFINITE) {
            return -INFINITE;  // hidden, even if the score is NaN
        }
    }
    const int64_t query = row_offset(job.query_strides, b, head, l);
    const int64_t key = row_offset(job.key_strides, b, head / (job.H_q / job.H), s);
    float total = 0;
    for (int64_t d = 0; d < job.D; d++) {
        total += load_element(job.query, query + d, job.format) *
                 load_element(job.key, key + d, job.format);
    }
    return total * job.scale + added;
    // [/task 2.4.2 score]
}

// One row of out: the online softmax of flash_attention.h, as it is written there.
void attend_row(const FlashAttentionJob& job, int64_t b, int64_t head, int64_t l) {
    // [task 2.4.2 row]
    float largest = -INFINITE;      // m
    float sum = 0;                  // l
    float out[MAX_HEAD_SIZE] = {};  // o
    const int64_t visible = visible_keys(job, b, l);
    for (int64_t tile = 0; tile < visible; tile += ATTENTION_TILE) {
        const int64_t end = std::min(tile + ATTENTION_TILE, visible);
        float scores[ATTENTION_TILE];
        float most = largest;
        bool hidden = true;
        for (int64_t s = tile; s < end; s++) {
            scores[s - tile] = score(job, b, head, l, s);
            most = std::max(most, scores[s - tile]);
            hidden = hidden && scores[s - tile] == -INFINITE;
        }
        if (hidden) {
            continue;
        }
        const float factor = largest == most ? 1 : std::exp(largest - most);
        sum *= factor;
        for (int64_t d = 0; d < job.D; d++) {
            out[d] *= factor;
        }
        for (int64_t s = tile; s < end; s++) {
            const float weight = std::exp(scores[s - tile] - most);
            const int64_t value = row_offset(job.value_strides, b, head / (job.H_q / job.H), s);
            sum += weight;
            for (int64_t d = 0; d < job.D; d++) {
                out[d] += weight * load_element(job.value, value + d, job.format);
            }
        }
        largest = most;
    }
    for (int64_t d = 0; d < job.D; d++) {
        store_element(job.out, out_offset(job, b, head, l) + d, job.format,
                      sum == 0 ? 0 : out[d] / sum);
    }
    // [/task 2.4.2 row]
}

int64_t portable_scratch(const FlashAttentionJob&, int) { return 0; }

void portable(const FlashAttentionJob& job, int64_t b, int64_t h, int64_t first_row, int rows,
              float*) {
    const int64_t group = job.H_q / job.H;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        attend_row(job, b, h * group + row % group, row / group);
    }
}

// A thread's memory for a block, kept from one call to the next, in whole cache lines.
float* scratch_of_this_thread(int64_t floats) {
    thread_local std::unique_ptr<char[]> memory;
    thread_local int64_t capacity = 0;
    const int64_t bytes = floats * static_cast<int64_t>(sizeof(float)) + 64;
    if (bytes > capacity) {
        memory = std::make_unique_for_overwrite<char[]>(bytes);
        capacity = bytes;
    }
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.get()) + 63) & ~63);
}

// How many rows a kernel takes at once: many, because all of them use a tile while it is in the
// cache, but not so many that threads are left without work.
int rows_per_block(const FlashAttentionJob& job) {
    const int64_t rows = job.L * (job.H_q / job.H);
    const int64_t wanted_blocks = 4 * num_threads();
    const int64_t share = (job.B * job.H * rows + wanted_blocks - 1) / wanted_blocks;
    const int64_t most = std::min<int64_t>(rows, MAX_BLOCK_ROWS);
    return static_cast<int>(std::min(most, std::max<int64_t>(share, 24)));
}

void run(const FlashAttentionJob& job, InstructionSet set) {
    auto kernel = portable;
    auto scratch_size = portable_scratch;
    // [solution only]
    kernel = TINY_LLM_CHOOSE_SIMD(set, flash_attention, portable);
    scratch_size = TINY_LLM_CHOOSE_SIMD(set, flash_attention_scratch, portable_scratch);
    // [/solution only]
    const int64_t rows = job.L * (job.H_q / job.H);
    const int64_t step = rows_per_block(job);
    const int64_t blocks = (rows + step - 1) / step;
    const int64_t heads = job.B * job.H;
    parallel_for(blocks * heads, [&](int64_t chunk) {
        // The last rows first: with a causal mask they see most, and what is long must not be last.
        const int64_t first = (blocks - 1 - chunk / heads) * step;
        const int count = static_cast<int>(std::min(step, rows - first));
        const int64_t head = chunk % heads;
        kernel(job, head / job.H, head % job.H, first, count,
               scratch_of_this_thread(scratch_size(job, count)));
    });
}

Strides strides_of(const mx::array& x) { return {x.strides(0), x.strides(1), x.strides(2)}; }

// x itself if its rows are contiguous, of any strides otherwise; or else a copy.
mx::array with_contiguous_rows(const mx::array& x, mx::Stream stream) {
    return x.strides(3) == 1 || x.shape(3) == 1 ? x : row_contiguous(x, stream);
}

// out B×H_q×L×D, laid out as B×L×H_q×D.
void allocate_by_token(mx::array& out) {
    const int64_t H_q = out.shape(1), L = out.shape(2), D = out.shape(3);
    auto flags = out.flags();
    flags.contiguous = true;
    flags.row_contiguous = H_q == 1 || L == 1;
    flags.col_contiguous = false;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), {L * H_q * D, D, H_q * D, 1},
                 flags);
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
    auto& encoder = mx::cpu::get_command_encoder(stream());
    for (const auto& input : inputs) {
        encoder.set_input_array(input);
    }
    encoder.set_output_array(out);
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
        .context_lens = has_context_lens_ ? inputs.back().data<int32_t>() : nullptr,
    };
    if (has_mask_) {
        set_mask(job, inputs[3]);
    }
    // [task 2.4.2 dispatch]
    encoder.dispatch([job, set = instruction_set()] { run(job, set); });
    // [/task 2.4.2 dispatch]
}

}  // namespace tiny_llm_ext
