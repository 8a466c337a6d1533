// paged_attention on the CPU: kernel selection and distribution of rows and sequences.
#include <algorithm>
#include <limits>
#include <vector>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/scratch.h"
#include "common/tasks.h"
#include "src/flash_attention/attention_split_kv.h"
#include "src/flash_attention/attention_week4.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_attention/paged_attention_kernels.h"

namespace tiny_llm_ext {

// [solution only]
TINY_LLM_DECLARE_SIMD(  //
    int64_t paged_attention_scratch(const PagedAttentionJob& job, int rows);
    void paged_attention(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t h,
                         int64_t first_row, int rows, const PagedSequence* next, float* scratch);)
// [/solution only]

namespace {

int64_t no_paged_attention_scratch(const PagedAttentionJob&, int) { return 0; }

// Arrays that describe a call's sequences. Only the enqueued task may read their values, because
// earlier tasks on the stream may still be computing them during eval_cpu.
struct Batch {
    int64_t B, max_pages, P;
    const int32_t* block_table;   // B×max_pages
    const int32_t* context_lens;  // B
    const int32_t* cu_seqlens_q;  // B+1, or null: L queries per sequence
    int64_t T, L;
    int64_t query_batch_stride;
};

// Query rows of one sequence. A chunk of work is one block and one key/value head.
struct Block {
    const PagedSequence* sequence;
    int64_t first_row;
    int rows;
    int64_t cost;  // number of query-key pairs
};

std::vector<PagedSequence> sequences_of(const PagedAttentionJob& job, const Batch& batch) {
    std::vector<PagedSequence> sequences;
    int64_t end = 0;  // end of the previous sequence's tokens
    for (int64_t b = 0; b < batch.B; b++) {
        PagedSequence sequence = {};
        if (batch.cu_seqlens_q == nullptr) {
            sequence.query = b * batch.query_batch_stride;
            sequence.token = b * batch.L;
            sequence.L = batch.L;
        } else {
            const int64_t first = std::clamp<int64_t>(batch.cu_seqlens_q[b], end, batch.T);
            end = std::clamp<int64_t>(batch.cu_seqlens_q[b + 1], first, batch.T);
            sequence.query = first * job.query_token_stride;
            sequence.token = first;
            sequence.L = end - first;
        }
        const int64_t capacity = batch.max_pages * job.page_size;
        sequence.S = std::clamp<int64_t>(batch.context_lens[b], 0, capacity);
        sequence.fits_table = batch.context_lens[b] <= capacity;
        sequence.pages = batch.block_table + b * batch.max_pages;
        sequences.push_back(sequence);
    }
    return sequences;
}

// Whether the block table has valid entries for all pages from the first query's window on.
bool has_all_pages(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t P) {
    if (!sequence.fits_table) {
        return false;
    }
    const int64_t pages = (sequence.S + job.page_size - 1) / job.page_size;
    const int64_t first = hidden_keys(job, sequence, 0) / job.page_size;
    return std::all_of(sequence.pages + first, sequence.pages + pages,
                       [&](int32_t page) { return page >= 0 && page < P; });
}

void fill(const PagedAttentionJob& job, int64_t first_token, int64_t end_token, float x) {
    const int64_t row = job.H_q * job.D;
    for (int64_t i = first_token * row; i < end_token * row; i++) {
        store_element(job.out, i, job.format, x);
    }
}

// Blocks in descending order of cost, so that no thread starts an expensive one last. Also writes
// the rows of `out` that no block computes.
std::vector<Block> blocks_of(const PagedAttentionJob& job,
                             const std::vector<PagedSequence>& sequences, const Batch& batch) {
    const int64_t group = job.H_q / job.H;
    std::vector<Block> blocks;
    int64_t assigned_until = 0;  // tokens before this one have a block or a written row of out
    for (const PagedSequence& sequence : sequences) {
        fill(job, assigned_until, sequence.token, 0);  // tokens in no sequence
        assigned_until = sequence.token + sequence.L;
        if (!has_all_pages(job, sequence, batch.P)) {
            fill(job, sequence.token, assigned_until, std::numeric_limits<float>::quiet_NaN());
            continue;
        }
        const int64_t rows = sequence.L * group;
        const int64_t step = rows_per_block(rows, batch.T * job.H_q, num_threads());
        for (int64_t first = 0; first < rows; first += step) {
            const int64_t end = std::min(first + step, rows);
            const int64_t keys = visible_keys(job, sequence, (end - 1) / group) -
                                 hidden_keys(job, sequence, first / group);
            blocks.push_back(
                {&sequence, first, static_cast<int>(end - first), (end - first) * (keys + 1)});
        }
    }
    fill(job, assigned_until, batch.T, 0);
    std::stable_sort(blocks.begin(), blocks.end(),
                     [](const Block& a, const Block& b) { return a.cost > b.cost; });
    return blocks;
}

// One key/value head of a sequence, in pages.
struct HeadInPages {
    const PagedAttentionJob* job;
    const PagedSequence* sequence;
    int64_t h;

    static void find(const void* head, int64_t first, KeyTile& tile) {
        const auto& [job, sequence, h] = *static_cast<const HeadInPages*>(head);
        for (int i = 0; i < tile.count;) {  // page by page
            const int64_t offset = key_offset(*job, *sequence, h, first + i);
            const int64_t in_page = job->page_size - (first + i) % job->page_size;
            for (int64_t k = 0; k < in_page && i < tile.count; k++, i++) {
                tile.keys[i] = tile.values[i] = offset + k * job->D;
            }
        }
    }
};

// Arguments of a Week 4 kernel for a head's `rows` rows from first_row on, at most QUERY_ROWS.
AttentionRows rows_of(const PagedAttentionJob& job, const HeadInPages& head, int64_t first_row,
                      int64_t rows) {
    const int64_t group = job.H_q / job.H;
    AttentionRows block = {.D = job.D,
                           .scale = job.scale,
                           .format = job.format,
                           .query = job.query,
                           .keys = job.key_pages,
                           .values = job.value_pages,
                           .out = job.out,
                           .rows = static_cast<int>(std::min<int64_t>(QUERY_ROWS, rows)),
                           .from = {},
                           .to = {},
                           .visible = {},
                           .find = HeadInPages::find,
                           .head = &head};
    for (int i = 0; i < block.rows; i++) {
        const int64_t l = (first_row + i) / group;
        const int64_t query_head = head.h * group + (first_row + i) % group;
        block.from[i] = query_offset(job, *head.sequence, query_head, l);
        block.to[i] = out_offset(job, *head.sequence, query_head, l);
        block.visible[i] = visible_keys(job, *head.sequence, l);
    }
    return block;
}

// Computes all blocks with the selected Week 4 kernel.
void run_week4(const PagedAttentionJob& job, const std::vector<Block>& blocks) {
    std::vector<HeadInPages> heads;
    for (const Block& block : blocks) {
        for (int64_t h = 0; h < job.H; h++) {
            heads.push_back({&job, block.sequence, h});
        }
    }
    std::vector<AttentionRows> smaller;
    for (size_t i = 0; i < heads.size(); i++) {
        const Block& block = blocks[i / job.H];
        for (int row = 0; row < block.rows; row += QUERY_ROWS) {
            smaller.push_back(rows_of(job, heads[i], block.first_row + row, block.rows - row));
        }
    }
    attend_week4(smaller, job.week4_kernel);
}

void run(const PagedAttentionJob& job, const Batch& batch, InstructionSet set) {
    const std::vector<PagedSequence> sequences = sequences_of(job, batch);
    const std::vector<Block> blocks = blocks_of(job, sequences, batch);
    const bool has_week4_kernel =
        job.kv_format != Format::int8 && job.window == 0 && job.sinks == nullptr;
    if (job.week4_kernel.is_selected && !job.week4_kernel.is_reference() && has_week4_kernel) {
        run_week4(job, blocks);
        return;
    }
    auto kernel = paged_attention_reference;
    auto scratch_size = no_paged_attention_scratch;
    // [solution only]
    if (!job.week4_kernel.is_selected) {
        kernel = TINY_LLM_CHOOSE_SIMD(set, paged_attention, paged_attention_reference);
        scratch_size =
            TINY_LLM_CHOOSE_SIMD(set, paged_attention_scratch, no_paged_attention_scratch);
        if (job.format == Format::bfloat16) {
            kernel = TINY_LLM_CHOOSE_AMX(set, paged_attention, kernel);
            scratch_size = TINY_LLM_CHOOSE_AMX(set, paged_attention_scratch, scratch_size);
        }
    }
    // [/solution only]
    const int64_t chunks = static_cast<int64_t>(blocks.size()) * job.H;
    parallel_for(chunks, [&](int64_t chunk) {
        const Block& block = blocks[chunk / job.H];
        const bool is_last = chunk + 1 == chunks;
        kernel(job, *block.sequence, chunk % job.H, block.first_row, block.rows,
               is_last ? nullptr : blocks[(chunk + 1) / job.H].sequence,
               thread_scratch(scratch_size(job, block.rows)));
    });
}

}  // namespace

void PagedAttention::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    ragged_ ? allocate(out) : allocate_by_token(out);
    if (out.size() == 0) {
        return;
    }
    const bool has_rows = inputs[0].strides(-1) == 1 || inputs[0].shape(-1) == 1;
    const mx::array query = has_rows ? inputs[0] : row_contiguous(inputs[0], stream());
    const mx::array key_pages = row_contiguous(inputs[1], stream());
    const mx::array value_pages = row_contiguous(inputs[2], stream());
    const mx::array block_table = row_contiguous(inputs[3], stream());
    const mx::array context_lens = row_contiguous(inputs[4], stream());
    const mx::array cu_seqlens_q = ragged_ ? row_contiguous(inputs[5], stream()) : context_lens;
    const int token_axis = ragged_ ? 0 : 2;
    const PagedAttentionJob job = {
        .H_q = query.shape(1),
        .H = key_pages.shape(1),
        .D = query.shape(-1),
        .page_size = key_pages.shape(2),
        .scale = scale_,
        .causal = causal_,
        .window = window_,
        .format = format_of(query.dtype()),
        .kv_format = key_pages.dtype() == mx::int8 ? Format::int8 : format_of(query.dtype()),
        .query = query.data<void>(),
        .key_pages = key_pages.data<void>(),
        .value_pages = value_pages.data<void>(),
        .out = out.data<void>(),
        .sinks = has_sinks_ ? row_contiguous(inputs.back(), stream()).data<float>() : nullptr,
        .query_head_stride = query.strides(1),
        .query_token_stride = query.strides(token_axis),
        .row_bytes = static_cast<int64_t>(key_pages.shape(3) * key_pages.itemsize()),
        .week4_kernel = week4_attention(),
    };
    const Batch batch = {
        .B = block_table.shape(0),
        .max_pages = block_table.shape(1),
        .P = key_pages.shape(0),
        .block_table = block_table.data<int32_t>(),
        .context_lens = context_lens.data<int32_t>(),
        .cu_seqlens_q = ragged_ ? cu_seqlens_q.data<int32_t>() : nullptr,
        .T = static_cast<int64_t>(out.size()) / (query.shape(1) * query.shape(-1)),
        .L = query.shape(token_axis),
        .query_batch_stride = query.strides(0),
    };
    add_task(stream(), [job, batch, set = instruction_set()] { run(job, batch, set); });
}

}  // namespace tiny_llm_ext
