// The launches of attention's kernels, for tiny_llm_ext.metal.
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>

#include "bindings_metal.h"
#include "src/flash_attention/flash_attention_launch.h"

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
    nb::class_<Params>(m, "FlashAttentionParams", "What the kernels of flash_attention are told.")
        .def(
            "__init__",
            [](Params* self, int B, int H_q, int H, int L, int S, int D, float scale, bool causal,
               int mask_kind, bool has_context_lens, bool aligned,
               const std::array<int64_t, 3>& query_strides,
               const std::array<int64_t, 3>& key_strides,
               const std::array<int64_t, 3>& value_strides,
               const std::array<int64_t, 4>& mask_strides) {
                new (self) Params{B,
                                  H_q,
                                  H,
                                  L,
                                  S,
                                  D,
                                  scale,
                                  causal,
                                  mask_kind,
                                  has_context_lens,
                                  attention_splits(S),
                                  aligned,
                                  {},
                                  {},
                                  {},
                                  {}};
                copy_strides(query_strides, self->query_strides);
                copy_strides(key_strides, self->key_strides);
                copy_strides(value_strides, self->value_strides);
                copy_strides(mask_strides, self->mask_strides);
            },
            nb::kw_only(), "B"_a, "H_q"_a, "H"_a, "L"_a, "S"_a, "D"_a, "scale"_a, "causal"_a,
            "mask_kind"_a, "has_context_lens"_a, "aligned"_a, "query_strides"_a, "key_strides"_a,
            "value_strides"_a, "mask_strides"_a)
        .def_ro("splits", &Params::splits, "Of the keys, in the decode kernel.");
}

}  // namespace

void bind_metal_attention(nb::module_& m) {
    bind_params(m);
    const auto def = [&](const char* name,
                         MetalLaunch (*launch)(const FlashAttentionParams&, Format),
                         const char* buffers) {
        m.def(
            name,
            [launch](const FlashAttentionParams& params, const std::string& dtype) {
                return launch(params, format_named(dtype));
            },
            "params"_a, "dtype"_a, buffers);
    };
    def("flash_attention_simple_launch", &flash_attention_simple_launch,
        "Buffers: query, key, value, mask, context_lens, out.");
    def("flash_attention_tile_launch", &flash_attention_tile_launch,
        "Buffers: query, key, value, mask, context_lens, out.");
    def("flash_attention_decode_launch", &flash_attention_decode_launch,
        "Buffers: query, key, value, mask, context_lens, out, partial, statistics.");
    def("flash_attention_merge_launch", &flash_attention_merge_launch,
        "Buffers: partial, statistics, out.");
    m.def("attention_is_decode", &attention_is_decode, "L"_a,
          "Whether the decode kernel is for L queries.");
}

}  // namespace tiny_llm_ext
