// flash_attention on the GPU: eval_gpu, which launches the Metal kernels.
#include "common/checks.h"
#include "common/metal_device.h"
#include "common/rows.h"
#include "src/flash_attention/flash_attention.h"
#include "src/flash_attention/flash_attention_launch.h"

namespace tiny_llm_ext {

namespace {

// Returns x if its rows are contiguous, regardless of its other strides; otherwise a copy.
mx::array with_contiguous_rows(const mx::array& x, mx::Stream stream) {
    return x.strides(3) == 1 || x.shape(3) == 1 ? x : metal::row_contiguous(x, stream);
}

void set_strides(long* strides, const mx::array& x, int count) {
    for (int i = 0; i < count; i++) {
        strides[i] = static_cast<long>(x.strides(i));
    }
}

// Whether all row offsets and the row size of x are multiples of four elements.
bool rows_are_aligned(const mx::array& x) {
    const auto begin = static_cast<int64_t>(x.offset() / x.itemsize());
    return (begin | x.strides(0) | x.strides(1) | x.strides(2) | x.shape(3)) % 4 == 0;
}

int mask_kind_of(mx::Dtype dtype) {
    return dtype == mx::bool_     ? ATTENTION_MASK_BOOL
           : dtype == mx::float32 ? ATTENTION_MASK_FLOAT32
           : dtype == mx::float16 ? ATTENTION_MASK_FLOAT16
                                  : ATTENTION_MASK_BFLOAT16;
}

// The functions below dispatch the kernels. Their inputs are the buffers that
// flash_attention_launch.h lists.
void encode_flash_readable(const mx::Stream& stream, const FlashAttentionParams& params,
                           Format format, const std::vector<mx::array>& inputs,
                           const mx::array& out) {
    metal::encode(stream, flash_attention_readable_launch(params, format), inputs, {out});
}

// [solution only]
void encode_flash_fast(const mx::Stream& stream, const FlashAttentionParams& params, Format format,
                       const std::vector<mx::array>& inputs, const mx::array& out) {
    if (!attention_is_decode(params.L)) {
        metal::encode(stream, flash_attention_tile_launch(params, format), inputs, {out});
        return;
    }
    const int rows = params.B * params.H_q * params.L;
    const bool merges = params.splits > 1;
    const auto partial =
        merges ? metal::temporary({rows, params.splits, params.D}, mx::float32, stream) : out;
    const auto statistics =
        merges ? metal::temporary({rows, params.splits, 2}, mx::float32, stream) : out;
    metal::encode(stream, flash_attention_decode_launch(params, format), inputs,
                  {out, partial, statistics});
    if (merges) {
        metal::encode(stream, flash_attention_merge_launch(params, format), {partial, statistics},
                      {out});
    }
}
// [/solution only]

}  // namespace

void FlashAttention::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
    allocate_by_token(out);
    if (out.size() == 0) {
        return;
    }
    const auto query = with_contiguous_rows(inputs[0], stream());
    const auto key = with_contiguous_rows(inputs[1], stream());
    const auto value = with_contiguous_rows(inputs[2], stream());
    // query stands in for absent optional inputs, which the kernels do not read.
    const auto& mask = has_mask_ ? inputs[3] : query;
    const auto context_lens =
        has_context_lens_ ? metal::row_contiguous(inputs[has_mask_ ? 4 : 3], stream()) : query;
    const auto sinks = has_sinks_ ? metal::row_contiguous(inputs.back(), stream()) : query;
    const Format format = format_of(query.dtype());
    FlashAttentionParams params = {
        .B = query.shape(0),
        .H_q = query.shape(1),
        .H = key.shape(1),
        .L = query.shape(2),
        .S = key.shape(2),
        .D = query.shape(3),
        .scale = scale_,
        .causal = causal_,
        .mask_kind = has_mask_ ? mask_kind_of(mask.dtype()) : ATTENTION_MASK_NONE,
        .has_context_lens = has_context_lens_,
        .has_sinks = has_sinks_,
        .splits = attention_splits(key.shape(2)),
        .aligned = rows_are_aligned(key) && rows_are_aligned(value),
        .query_strides = {},
        .key_strides = {},
        .value_strides = {},
        .mask_strides = {},
    };
    set_strides(params.query_strides, query, 3);
    set_strides(params.key_strides, key, 3);
    set_strides(params.value_strides, value, 3);
    set_strides(params.mask_strides, mask, 4);
    auto encode = encode_flash_readable;
    // [solution only]
    encode = encode_flash_fast;
    // [/solution only]
    encode(stream(), params, format, {query, key, value, mask, context_lens, sinks}, out);
}

}  // namespace tiny_llm_ext
