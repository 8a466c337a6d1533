// Launch configurations of the attention operations, for tiny_llm_ext.metal.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>

#include "bindings_metal.h"
#include "src/flash_attention/flash_attention_launch.h"
#include "src/paged_attention/paged_attention_launch.h"
#include "src/paged_cache_write/paged_cache_write_launch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm_ext {

namespace {

template <size_t N>
void copy_strides(const std::array<int64_t, N>& from, long (&to)[N]) {
    std::copy(from.begin(), from.end(), to);
}

void bind_params(nb::module_& m) {
    using Params = FlashAttentionParams;
    nb::class_<Params>(m, "FlashAttentionParams", "Parameters of the flash_attention kernels.")
        .def(
            "__init__",
            [](Params* self, int B, int H_q, int H, int L, int S, int D, float scale, bool causal,
               int mask_kind, bool has_context_lens, bool aligned, bool has_sinks,
               const std::array<int64_t, 3>& query_strides,
               const std::array<int64_t, 3>& key_strides,
               const std::array<int64_t, 3>& value_strides,
               const std::array<int64_t, 4>& mask_strides) {
                new (self) Params{B,         H_q,
                                  H,         L,
                                  S,         D,
                                  scale,     causal,
                                  mask_kind, has_context_lens,
                                  has_sinks, attention_splits(S),
                                  aligned,   {},
                                  {},        {},
                                  {}};
                copy_strides(query_strides, self->query_strides);
                copy_strides(key_strides, self->key_strides);
                copy_strides(value_strides, self->value_strides);
                copy_strides(mask_strides, self->mask_strides);
            },
            nb::kw_only(), "B"_a, "H_q"_a, "H"_a, "L"_a, "S"_a, "D"_a, "scale"_a, "causal"_a,
            "mask_kind"_a, "has_context_lens"_a, "aligned"_a, "has_sinks"_a = false,
            "query_strides"_a, "key_strides"_a, "value_strides"_a, "mask_strides"_a)
        .def_ro("splits", &Params::splits, "Number of splits of the keys in the decode kernel.");
}

// Binds a function that computes a launch configuration from a params struct and a dtype.
template <typename Params>
void def_launch(nb::module_& m, const char* name, MetalLaunch (*launch)(const Params&, Format),
                const char* buffers) {
    m.def(
        name,
        [launch](const Params& params, const std::string& dtype) {
            return launch(params, format_named(dtype));
        },
        "params"_a, "dtype"_a, buffers);
}

void bind_paged_params(nb::module_& m) {
    using Params = PagedAttentionParams;
    nb::class_<Params>(m, "PagedAttentionParams", "Parameters of the paged_attention kernels.")
        .def(
            "__init__",
            [](Params* self, int H_q, int H, int D, int B, int max_pages, int P, int page_size,
               int row_width, int T, int L, float scale, bool causal, bool aligned, bool int8,
               int window, bool has_sinks, const std::array<int64_t, 3>& query_strides) {
                const int splits = paged_attention_splits(max_pages, page_size);
                new (self) Params{H_q,       H,         D,       B,    max_pages, P,
                                  page_size, row_width, T,       L,    scale,     causal,
                                  window,    splits,    aligned, int8, has_sinks, {}};
                copy_strides(query_strides, self->query_strides);
            },
            nb::kw_only(), "H_q"_a, "H"_a, "D"_a, "B"_a, "max_pages"_a, "P"_a, "page_size"_a,
            "row_width"_a, "T"_a, "L"_a, "scale"_a, "causal"_a, "aligned"_a, "int8"_a = false,
            "window"_a = 0, "has_sinks"_a = false, "query_strides"_a)
        .def_ro("splits", &Params::splits, "Number of splits of the keys in the decode kernel.")
        .def_prop_ro("partial_rows", &paged_attention_partial_rows,
                     "Rows of the decode kernel's buffer `partial`.")
        .def_prop_ro("has_decode", &paged_attention_has_decode,
                     "Whether the decode kernel is launched.")
        .def_prop_ro("has_tile", &paged_attention_has_tile, "Whether the tile kernel is launched.");
}

void bind_paged(nb::module_& m) {
    bind_paged_params(m);
    const char* buffers =
        "Buffers: query, key_pages, value_pages, block_table, context_lens, cu_seqlens_q, sinks, "
        "out.";
    def_launch(m, "paged_attention_readable_launch", &paged_attention_readable_launch, buffers);
    def_launch(m, "paged_attention_tile_launch", &paged_attention_tile_launch, buffers);
    def_launch(m, "paged_attention_decode_launch", &paged_attention_decode_launch,
               "Buffers: query, key_pages, value_pages, block_table, context_lens, cu_seqlens_q, "
               "sinks, out, partial, statistics.");
    def_launch(m, "paged_attention_merge_launch", &paged_attention_merge_launch,
               "Buffers: partial, statistics, cu_seqlens_q, out.");
    m.def(
        "paged_cache_write_launch",
        [](int H, int L, int D, int page_size, int64_t tokens, int64_t num_slots,
           const std::array<int64_t, 4>& token_strides, int item_size, int max_threads) {
            PagedCacheWriteParams params = {H, L, D, page_size, D, tokens, num_slots, {}};
            copy_strides(token_strides, params.token_strides);
            return paged_cache_write_launch(params, item_size, max_threads);
        },
        nb::kw_only(), "H"_a, "L"_a, "D"_a, "page_size"_a, "tokens"_a, "num_slots"_a,
        "token_strides"_a, "item_size"_a, "max_threads"_a = MAX_THREADS,
        "Buffers: tokens, slots, the pages.");
    m.def(
        "paged_cache_write_int8_launch",
        [](int H, int L, int D, int page_size, int row_width, int64_t tokens, int64_t num_slots,
           const std::array<int64_t, 4>& token_strides, const std::string& dtype) {
            PagedCacheWriteParams params = {H, L, D, page_size, row_width, tokens, num_slots, {}};
            copy_strides(token_strides, params.token_strides);
            return paged_cache_write_int8_launch(params, format_named(dtype));
        },
        nb::kw_only(), "H"_a, "L"_a, "D"_a, "page_size"_a, "row_width"_a, "tokens"_a, "num_slots"_a,
        "token_strides"_a, "dtype"_a, "Buffers: tokens, slots, the pages.");
}

}  // namespace

void bind_metal_attention(nb::module_& m) {
    bind_params(m);
    bind_paged(m);
    const char* buffers = "Buffers: query, key, value, mask, context_lens, sinks, out.";
    def_launch(m, "flash_attention_readable_launch", &flash_attention_readable_launch, buffers);
    def_launch(m, "flash_attention_tile_launch", &flash_attention_tile_launch, buffers);
    def_launch(m, "flash_attention_decode_launch", &flash_attention_decode_launch,
               "Buffers: query, key, value, mask, context_lens, sinks, out, partial, statistics.");
    def_launch(m, "flash_attention_merge_launch", &flash_attention_merge_launch,
               "Buffers: partial, statistics, out.");
    m.def("attention_is_decode", &attention_is_decode, "L"_a,
          "Whether L queries use the decode kernel.");
}

}  // namespace tiny_llm_ext
