#include "src/paged_attention/paged_attention_launch.h"

#include "src/flash_attention/flash_attention_launch.h"

namespace tiny_llm_ext {

namespace {

bool is_ragged(const PagedAttentionParams& params) { return params.L == 0; }

// Query heads per key head. They share keys, so a threadgroup computes their rows together.
int64_t group_of(const PagedAttentionParams& params) { return params.H_q / params.H; }

// Maximum queries per sequence in the decode kernel.
int64_t max_queries(const PagedAttentionParams& params) {
    return is_ragged(params) ? std::min<int64_t>(params.T, ATTENTION_FEW_QUERIES) : params.L;
}

// Query rows per decode threadgroup. If T ≤ B, each sequence likely has one token, so fewer rows
// suffice.
int decode_rows(const PagedAttentionParams& params) {
    const bool one_each = is_ragged(params) && params.T <= params.B;
    const int64_t rows = group_of(params) * (one_each ? 1 : max_queries(params));
    return attention_decode_rows(rows, params.D);
}

std::string fast_kernel(const std::string& variant, const PagedAttentionParams& params,
                        Format format) {
    return kernel_name(variant, format) + (params.int8 ? "_int8" : "");
}

}  // namespace

MetalLaunch paged_attention_readable_launch(const PagedAttentionParams& params, Format format) {
    return {.kernel = kernel_name("paged_attention_readable", format),
            .groups = {.x = params.T, .y = params.H_q},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

MetalLaunch paged_attention_decode_launch(const PagedAttentionParams& params, Format format) {
    const int rows_per_threadgroup = decode_rows(params);
    const int64_t rows = group_of(params) * max_queries(params);
    const int64_t sequences =
        params.B + (is_ragged(params) ? 1 : 0);  // one for tokens in no sequence
    const std::string variant = "paged_attention_decode_rows" +
                                std::to_string(rows_per_threadgroup) +
                                attention_head_size(params.D);
    return {.kernel = fast_kernel(variant, params, format),
            .groups = {.x = params.splits,
                       .y = ceil_div(rows, rows_per_threadgroup),
                       .z = sequences * params.H},
            .threads = {.x = ATTENTION_SPLIT_SIMDGROUPS * SIMD_WIDTH},
            .params = bytes_of(params)};
}

MetalLaunch paged_attention_merge_launch(const PagedAttentionParams& params, Format format) {
    return {.kernel = kernel_name("paged_attention_decode_merge", format),
            .groups = {.x = max_queries(params), .y = params.H_q, .z = params.B},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

MetalLaunch paged_attention_tile_launch(const PagedAttentionParams& params, Format format) {
    // Blocks per sequence or, in the varlen form, of all sequences: see paged_attention_tile.metal.
    const int64_t rows = group_of(params) * (is_ragged(params) ? params.T : params.L);
    const int64_t simdgroups =
        std::min<int64_t>(ceil_div(rows, ATTENTION_MATRIX_ROWS), ATTENTION_MATRIX_SIMDGROUPS);
    const int64_t block = simdgroups * ATTENTION_MATRIX_ROWS;
    const int64_t blocks = is_ragged(params) ? rows / block + params.B : ceil_div(rows, block);
    return {.kernel =
                fast_kernel("paged_attention_tile" + attention_head_size(params.D), params, format),
            .groups = {.x = blocks, .y = params.H, .z = is_ragged(params) ? 1 : params.B},
            .threads = {.x = simdgroups * SIMD_WIDTH},
            .params = bytes_of(params)};
}

bool paged_attention_has_decode(const PagedAttentionParams& params) {
    return params.L <= ATTENTION_FEW_QUERIES;
}

bool paged_attention_has_tile(const PagedAttentionParams& params) {
    const int longest = is_ragged(params) && params.B > 0 ? params.T : params.L;
    return longest > ATTENTION_FEW_QUERIES;
}

int64_t paged_attention_partial_rows(const PagedAttentionParams& params) {
    const int64_t few = static_cast<int64_t>(params.B) * ATTENTION_FEW_QUERIES;
    return std::min<int64_t>(params.T, few) * params.H_q;
}

int paged_attention_splits(int max_pages, int page_size) {
    const int64_t capacity = static_cast<int64_t>(max_pages) * page_size;
    return static_cast<int>(std::max<int64_t>(1, ceil_div(capacity, ATTENTION_SPLIT)));
}

}  // namespace tiny_llm_ext
