// paged_attention with vectors: tiles of pages, found through the block table. What happens to a
// tile is in attention_block.h, and the same as in flash_attention.
#include "src/flash_attention/attention_block.h"
#include "src/paged_attention/paged_attention_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Up to KEYS keys (or values) of head h, from key `first` on; none at or beyond `end`.
Rows tile_rows(const void* pages, const PagedAttentionJob& job, const PagedSequence& sequence,
               int64_t h, int64_t first, int64_t end) {
    Rows rows;
    const int64_t left = end - first;
    rows.count = static_cast<int>(left < 0 ? 0 : left < KEYS ? left : KEYS);
    const int64_t row_bytes = bytes_of(job.D, job.format);
    for (int i = 0; i < rows.count;) {  // page by page
        const void* row = element(pages, key_offset(job, sequence, h, first + i), job.format);
        const int64_t in_page = job.page_size - (first + i) % job.page_size;
        const int count = rows.count - i < in_page ? rows.count - i : static_cast<int>(in_page);
        for (int k = 0; k < count; k++) {
            rows.at[i + k] = static_cast<const char*>(row) + k * row_bytes;
        }
        i += count;
    }
    return rows;
}

}  // namespace

int64_t paged_attention_scratch(const PagedAttentionJob& job, int rows) {
    return block_scratch(rows, job.D);
}

void paged_attention(const PagedAttentionJob& job, const PagedSequence& sequence, int64_t h,
                     int64_t first_row, int rows, float* scratch) {
    const int64_t group = job.H_q / job.H;
    const AttentionBlock block = make_block(rows, job.D, job.scale, job.format, scratch);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        const int64_t from = query_offset(job, sequence, h * group + row % group, row / group);
        load_query_row(block, i, job.query, from);
    }
    const auto visible = [&](int row) {
        return visible_keys(job, sequence, (first_row + row) / group);
    };
    const int64_t end = visible(rows - 1);  // the last row sees most
    const auto tile_at = [&](int64_t head, int64_t first) -> Tile {
        return {tile_rows(job.key_pages, job, sequence, head, first, end),
                tile_rows(job.value_pages, job, sequence, head, first, end)};
    };
    const auto tile = [&](int64_t first) {  // the next head is likely to come after this one
        return first < end     ? tile_at(h, first)
               : h + 1 < job.H ? tile_at(h + 1, first - end)
                               : Tile{};
    };
    const auto no_mask = [](int64_t, int) { return true; };
    attend_to_all(block, end, visible, tile, nullptr, no_mask);
    for (int i = 0; i < rows; i++) {
        const int64_t row = first_row + i;
        finish_row(block, i, job.out,
                   out_offset(job, sequence, h * group + row % group, row / group));
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
