// Vectorized paged_attention: the computation of flash_attention (attention_block.h), with tiles of
// keys and values located through the block table.
#include "src/flash_attention/fast/attention_block.h"
#include "src/paged_attention/paged_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Keys and values of a sequence's head h, in pages, from key `begin` on. Earlier keys, which are
// hidden and may have no page, get the address of key `begin`.
struct HeadInPages {
    const PagedAttentionJob& job;
    const PagedSequence& sequence;
    int64_t h, begin;

    void find_rows(int64_t first, Tile& tile) const {
        const int64_t step = job.row_bytes;
        for (int i = 0, count; i < tile.count; i += count) {  // page by page
            const int64_t key = first + i < begin ? begin : first + i;
            const bool is_hidden = first + i < begin;
            const int64_t last =
                is_hidden ? begin - first : i + job.page_size - key % job.page_size;
            count = static_cast<int>(last < tile.count ? last : tile.count) - i;
            const int64_t row = key_offset(job, sequence, h, key) / job.D * step;
            const int64_t row_step = is_hidden ? 0 : step;
            write_addresses(static_cast<const char*>(job.key_pages) + row, row_step, count,
                            tile.keys + i);
            write_addresses(static_cast<const char*>(job.value_pages) + row, row_step, count,
                            tile.values + i);
        }
    }
};

}  // namespace

int64_t paged_attention_scratch(const PagedAttentionJob& job, int rows) {
    return block_scratch(rows, job.D);
}

void paged_attention(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t h,
                     int64_t first_row, int rows, const PagedSequence* next, float* scratch) {
    const int64_t group = job.H_q / job.H;
    const AttentionBlock block =
        make_block(rows, job.D, job.scale, job.format, job.kv_format, scratch);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        const int64_t from = query_offset(job, sequence, h * group + row % group, row / group);
        load_query_row(block, i, job.query, from);
        if (job.sinks != nullptr) {
            set_sink(block, i, job.sinks[h * group + row % group]);
        }
    }
    const auto visible = [&](int row) {
        return visible_keys(job, sequence, (first_row + row) / group);
    };
    const auto hidden = [&](int row) {
        return hidden_keys(job, sequence, (first_row + row) / group);
    };
    const int64_t begin = hidden(0), end = visible(rows - 1);  // the last row sees the most keys
    const auto tile_at = [&](int64_t first, Tile& tile) {
        if (first < end) {
            find_tile(HeadInPages{job, sequence, h, begin}, first, end, tile);
        } else if (next != nullptr) {
            const int64_t next_begin = hidden_keys(job, *next, 0);
            find_tile(HeadInPages{job, *next, (h + 1) % job.H, next_begin},
                      next_begin / KEYS * KEYS + first - end, next->S, tile);
        } else {
            tile.count = 0;
        }
    };
    const auto no_mask = [](int64_t, int) { return true; };
    attend_to_all(block, end, visible, hidden, tile_at, nullptr, no_mask);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        finish_row(block, i, job.out,
                   out_offset(job, sequence, h * group + row % group, row / group));
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
