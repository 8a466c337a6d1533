// qk_norm_rope: argument checks and construction of the graph node.
#include "src/qk_norm_rope/qk_norm_rope.h"

#include <algorithm>

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array qk_norm_rope(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                       const mx::array& cos, const mx::array& sin, mx::StreamOrDevice s) {
    constexpr const char* NAME = "qk_norm_rope";
    check_float(NAME, "x", x);
    check(x.ndim() == 4, NAME, "expected x with 4 dimensions, B×L×H×D, got shape ", x.shape());
    const int B = x.shape(0), L = x.shape(1), H = x.shape(2), D = x.shape(3);
    check(D % 2 == 0, NAME, "expected an even head size, the last dimension of x, got ", D);
    if (weight) {
        check(weight->shape() == mx::Shape{D}, NAME, "expected weight of shape (", D,
              "), the last dimension of x, got ", weight->shape());
        check(weight->dtype() == x.dtype(), NAME, "expected weight in the dtype of x, ", x.dtype(),
              ", got ", weight->dtype());
    }
    check(cos.dtype() == mx::float32 && sin.dtype() == mx::float32, NAME,
          "expected cos and sin in float32, got ", cos.dtype(), " and ", sin.dtype());
    const int W = cos.ndim() == 3 ? cos.shape(2) : 0;
    const mx::Shape shared = {1, L, W}, own = {B, L, W};
    check((cos.shape() == shared || cos.shape() == own) && W >= std::min(1, D / 2) && W <= D / 2,
          NAME, "expected cos of shape (", B, ",", L, ",W) or (1,", L, ",W), W from 1 to ", D / 2,
          ", got ", cos.shape());
    check(sin.shape() == cos.shape(), NAME, "expected sin of the shape of cos, ", cos.shape(),
          ", got ", sin.shape());
    return mx::array({B, H, L, D}, x.dtype(),
                     wrap_if_emulated(std::make_shared<QkNormRope>(
                         stream_for("qk_norm_rope", x.dtype(), s), eps, weight.has_value())),
                     {x, weight.value_or(x), cos, sin});
}

bool QkNormRope::is_equivalent(const mx::Primitive& other) const {
    const auto& rope = static_cast<const QkNormRope&>(other);
    return eps_ == rope.eps_ && normalizes_ == rope.normalizes_;
}

std::vector<mx::Shape> QkNormRope::output_shapes(const std::vector<mx::array>& inputs) {
    const auto& x = inputs[0];
    return {{x.shape(0), x.shape(2), x.shape(1), x.shape(3)}};
}

}  // namespace tiny_llm_ext
