// flash_attention: argument checks and construction of the graph node.
#include "src/flash_attention/flash_attention.h"

#include <cmath>

#include "common/checks.h"
#include "common/gpu.h"
#include "src/flash_attention/flash_attention_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* FLASH_ATTENTION = "flash_attention";

void check_query_key_value(const mx::array& query, const mx::array& key, const mx::array& value) {
    check_float(FLASH_ATTENTION, "query", query);
    check(key.dtype() == query.dtype() && value.dtype() == query.dtype(), FLASH_ATTENTION,
          "expected key and value in the dtype of query, ", query.dtype(), ", got ", key.dtype(),
          " and ", value.dtype());
    check(query.ndim() >= 3, FLASH_ATTENTION, "expected query of shape N..×H_q×L×D, got shape ",
          query.shape());
    check(key.ndim() == query.ndim(), FLASH_ATTENTION, "expected key with the ", query.ndim(),
          " dimensions of query, got shape ", key.shape());
    check_same_shape(FLASH_ATTENTION, "value", value, "key", key);

    auto expected = query.shape();  // shape of query with the heads and tokens of key
    expected.end()[-3] = key.shape(-3);
    expected.end()[-2] = key.shape(-2);
    check(key.shape() == expected, FLASH_ATTENTION, "expected key of shape ", expected,
          " for query of shape ", query.shape(), ", got ", key.shape());
    const int D = query.shape(-1), H_q = query.shape(-3), H = key.shape(-3);
    check(D >= 1 && D <= MAX_HEAD_SIZE, FLASH_ATTENTION, "expected a head size from 1 to ",
          MAX_HEAD_SIZE, ", got ", D);
    check(H > 0 && H_q % H == 0, FLASH_ATTENTION,
          "expected the key/value heads to divide the query heads, got ", H, " and ", H_q);
}

// Merges all leading dimensions: N..×X×Y×Z -> B×X×Y×Z.
mx::array flatten_batch(const mx::array& x, mx::StreamOrDevice s) {
    return x.ndim() == 3   ? mx::expand_dims(x, 0, s)
           : x.ndim() == 4 ? x
                           : mx::flatten(x, 0, static_cast<int>(x.ndim()) - 4, s);
}

mx::array broadcast_mask(const mx::array& mask, const mx::Shape& scores, mx::StreamOrDevice s) {
    check(mask.dtype() == mx::bool_ || is_float(mask.dtype()), FLASH_ATTENTION,
          "expected mask in bool, float32, float16 or bfloat16, got ", mask.dtype());
    bool fits = mask.ndim() <= scores.size();
    for (int i = 1; fits && i <= static_cast<int>(mask.ndim()); i++) {
        fits = mask.shape(-i) == 1 || mask.shape(-i) == scores.end()[-i];
    }
    check(fits, FLASH_ATTENTION, "expected a mask broadcastable to ", scores, ", got shape ",
          mask.shape());
    return flatten_batch(mx::broadcast_to(mask, scores, s), s);
}

}  // namespace

mx::array flash_attention(const mx::array& query, const mx::array& key, const mx::array& value,
                          std::optional<float> scale, bool causal,
                          const std::optional<mx::array>& mask,
                          const std::optional<mx::array>& context_lens,
                          const std::optional<mx::array>& sinks, mx::StreamOrDevice s) {
    check_query_key_value(query, key, value);
    std::vector<mx::array> inputs = {flatten_batch(query, s), flatten_batch(key, s),
                                     flatten_batch(value, s)};
    if (mask) {
        check(!causal, FLASH_ATTENTION, "expected either causal or a mask array, got both");
        auto scores = query.shape();  // N..×H_q×L×S
        scores.back() = key.shape(-2);
        inputs.push_back(broadcast_mask(*mask, scores, s));
    }
    if (context_lens) {
        check(query.ndim() == 4, FLASH_ATTENTION,
              "expected query with 4 dimensions if context_lens is given, got shape ",
              query.shape());
        check(context_lens->dtype() == mx::int32, FLASH_ATTENTION,
              "expected context_lens in int32, got ", context_lens->dtype());
        const mx::Shape batch = {query.shape(0)};
        check(context_lens->shape() == batch, FLASH_ATTENTION, "expected context_lens of shape ",
              batch, " for query of shape ", query.shape(), ", got ", context_lens->shape());
        inputs.push_back(*context_lens);
    }
    if (sinks) {
        check_sinks(FLASH_ATTENTION, *sinks, query.shape(-3));
        inputs.push_back(*sinks);
    }
    const float factor = scale ? *scale : 1 / std::sqrt(static_cast<float>(query.shape(-1)));
    const auto shape = inputs[0].shape();
    const auto primitive = wrap_if_emulated(std::make_shared<FlashAttention>(
        stream_for("flash_attention", query.dtype(), s), factor, causal, mask.has_value(),
        context_lens.has_value(), sinks.has_value()));
    const mx::array out(shape, query.dtype(), primitive, std::move(inputs));
    return query.ndim() == 4 ? out : mx::reshape(out, query.shape(), s);
}

bool FlashAttention::is_equivalent(const mx::Primitive& other) const {
    const auto& attention = static_cast<const FlashAttention&>(other);
    return scale_ == attention.scale_ && causal_ == attention.causal_ &&
           has_mask_ == attention.has_mask_ && has_context_lens_ == attention.has_context_lens_ &&
           has_sinks_ == attention.has_sinks_;
}

std::vector<mx::Shape> FlashAttention::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape()};
}

}  // namespace tiny_llm_ext
