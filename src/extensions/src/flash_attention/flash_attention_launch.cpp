#include "src/flash_attention/flash_attention_launch.h"

#include "common/checks.h"

namespace tiny_llm_ext {

namespace {

// Query rows per key head: the query heads of a group share keys, so a threadgroup computes their
// rows together.
int64_t rows_of_group(const FlashAttentionParams& params) {
    return static_cast<int64_t>(params.L) * (params.H_q / params.H);
}

int64_t key_heads(const FlashAttentionParams& params) {
    return static_cast<int64_t>(params.B) * params.H;
}

}  // namespace

MetalLaunch flash_attention_readable_launch(const FlashAttentionParams& params, Format format) {
    const int64_t heads = static_cast<int64_t>(params.B) * params.H_q;
    const int item = format == Format::float32 ? 4 : 2;
    check(params.D <= 256, "flash_attention",
          "expected a head size of at most 256 for the readable kernel, got ", params.D);
    return {.kernel = kernel_name("flash_attention_readable", format),
            .groups = {.x = ceil_div(params.L, ATTENTION_READABLE_TILE), .y = heads},
            .threads = {.x = ATTENTION_READABLE_TILE * SIMD_WIDTH},
            .threadgroup_bytes =
                static_cast<int>(round_up(ATTENTION_READABLE_TILE * params.D * item, 16)),
            .params = bytes_of(params)};
}

MetalLaunch flash_attention_tile_launch(const FlashAttentionParams& params, Format format) {
    const int64_t simdgroups = ceil_div(rows_of_group(params), ATTENTION_MATRIX_ROWS);
    const int64_t simdgroups_per_threadgroup =
        std::min<int64_t>(simdgroups, ATTENTION_MATRIX_SIMDGROUPS);
    return {
        .kernel = kernel_name("flash_attention_tile" + attention_head_size(params.D), format),
        .groups = {.x = ceil_div(simdgroups, simdgroups_per_threadgroup), .y = key_heads(params)},
        .threads = {.x = simdgroups_per_threadgroup * SIMD_WIDTH},
        .params = bytes_of(params)};
}

MetalLaunch flash_attention_decode_launch(const FlashAttentionParams& params, Format format) {
    const int64_t rows = rows_of_group(params);
    const int rows_per_threadgroup = attention_decode_rows(rows, params.D);
    const std::string variant = "flash_attention_decode_rows" +
                                std::to_string(rows_per_threadgroup) +
                                attention_head_size(params.D);
    return {.kernel = kernel_name(variant, format),
            .groups = {.x = params.splits,
                       .y = ceil_div(rows, rows_per_threadgroup),
                       .z = key_heads(params)},
            .threads = {.x = ATTENTION_SPLIT_SIMDGROUPS * SIMD_WIDTH},
            .params = bytes_of(params)};
}

MetalLaunch flash_attention_merge_launch(const FlashAttentionParams& params, Format format) {
    return {.kernel = kernel_name("flash_attention_decode_merge", format),
            .groups = {.x = static_cast<int64_t>(params.B) * params.H_q * params.L},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

std::string attention_head_size(int D) { return D <= 128 ? "_d128" : D <= 256 ? "_d256" : "_d512"; }

int attention_decode_rows(int64_t rows, int D) {
    return rows <= 2 ? 2 : rows <= 4 || D > 256 ? 4 : 8;
}

int attention_splits(int S) {
    return static_cast<int>(std::max<int64_t>(1, ceil_div(S, ATTENTION_SPLIT)));
}

bool attention_is_decode(int L) { return L <= ATTENTION_FEW_QUERIES; }

}  // namespace tiny_llm_ext
