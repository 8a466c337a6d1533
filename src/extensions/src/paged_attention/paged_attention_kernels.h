// CPU kernels of paged_attention on raw pointers: no MLX, no standard library templates (see
// common/half.h).
#pragma once

#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

/// Kernel arguments shared by all sequences.
struct PagedAttentionJob {
    int64_t H_q, H, D, page_size;
    float scale;
    bool causal;
    int64_t window;           // number of newest keys visible to a query; 0: all
    Format format;            // format of query and out
    Format kv_format;         // format of the pages: `format`, or int8
    const void* query;        // rows of D contiguous elements
    const void* key_pages;    // P×H×page_size rows; int8: see common/int8_rows.h
    const void* value_pages;  // as key_pages
    void* out;                // T×H_q×D
    const float* sinks;       // H_q, or null

    int64_t query_head_stride, query_token_stride;  // in elements
    int64_t row_bytes;                              // of a row of the pages, with padding
    Week4Attention week4_kernel;
};

/// The queries and pages of one sequence.
struct PagedSequence {
    int64_t query;  // offset of its first query (head 0) in job.query, in elements
    int64_t token;  // index of its first token in out
    int64_t L;      // number of queries
    int64_t S;      // number of keys
    const int32_t*
        pages;        // the pages of its keys, valid from the first query's window to key S − 1
    bool fits_table;  // whether the block table has an entry for each page of the context
};

// Query heads that share a key/value head read the same keys, so a kernel batches them. Rows are
// numbered as in flash_attention_kernels.h.

/// Reference kernel: computes rows first_row … first_row + rows − 1 of a sequence's key/value head
/// h. Only the vectorized kernels use `scratch` memory and the prefetch hint `next`: the sequence
/// whose keys are likely read next (in head h + 1, or head 0 after the last head), or null.
void paged_attention_reference(const PagedAttentionJob& job, const PagedSequence& sequence,
                               int64_t h, int64_t first_row, int rows, const PagedSequence* next,
                               float* scratch);

namespace {  // internal linkage: the linker must not merge copies (see common/half.h)

/// Number of leading keys visible to query l of a sequence.
[[maybe_unused]] inline int64_t visible_keys(const PagedAttentionJob& job,
                                             const PagedSequence& sequence, int64_t l) {
    // [task 3.2.2 visible]
    if (!job.causal) {
        return sequence.S;
    }
    const int64_t visible = l + 1 + sequence.S - sequence.L;
    return visible < 0 ? 0 : visible < sequence.S ? visible : sequence.S;
    // [/task 3.2.2 visible]
}

/// Number of leading keys before the window of query l of a sequence.
[[maybe_unused]] inline int64_t hidden_keys(const PagedAttentionJob& job,
                                            const PagedSequence& sequence, int64_t l) {
    const int64_t hidden = visible_keys(job, sequence, l) - job.window;
    return job.window == 0 || hidden < 0 ? 0 : hidden;
}

/// Offset of key (or value) j of head h from the start of the pages, in elements, not counting the
/// scales and padding of int8 rows.
[[maybe_unused]] inline int64_t key_offset(const PagedAttentionJob& job,
                                           const PagedSequence& sequence, int64_t h, int64_t j) {
    // [task 3.2.2 offset]
    const int64_t page = sequence.pages[j / job.page_size];
    return ((page * job.H + h) * job.page_size + j % job.page_size) * job.D;
    // [/task 3.2.2 offset]
}

/// Offset of query l of a query head in job.query, in elements.
[[maybe_unused]] inline int64_t query_offset(const PagedAttentionJob& job,
                                             const PagedSequence& sequence, int64_t head,
                                             int64_t l) {
    return sequence.query + head * job.query_head_stride + l * job.query_token_stride;
}

/// Offset in job.out of the output of query l of a query head, in elements.
[[maybe_unused]] inline int64_t out_offset(const PagedAttentionJob& job,
                                           const PagedSequence& sequence, int64_t head, int64_t l) {
    return ((sequence.token + l) * job.H_q + head) * job.D;
}

}  // namespace

}  // namespace tiny_llm_ext
