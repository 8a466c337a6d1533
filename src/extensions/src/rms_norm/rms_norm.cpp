// rms_norm and add_rms_norm: argument checks and construction of the graph node.
#include "src/rms_norm/rms_norm.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

namespace {

void check_inputs(const char* name, const mx::array& x, const mx::array& weight) {
    check_float(name, "x", x);
    check_not_scalar(name, "x", x);
    check(weight.shape() == mx::Shape{x.shape(-1)}, name, "expected weight of shape (", x.shape(-1),
          "), the last dimension of x, got ", weight.shape());
    check_same_dtype(name, "weight", weight, "x", x);
}

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float eps, mx::StreamOrDevice s) {
    check_inputs("rms_norm", x, weight);
    return mx::array(
        x.shape(), x.dtype(),
        wrap_if_emulated(std::make_shared<RmsNorm>(stream_for("rms_norm", x.dtype(), s), eps)),
        {x, weight});
}

std::pair<mx::array, mx::array> add_rms_norm(const mx::array& x, const mx::array& y,
                                             const mx::array& weight, float eps,
                                             mx::StreamOrDevice s) {
    constexpr const char* NAME = "add_rms_norm";
    check_inputs(NAME, x, weight);
    check(y.shape() == x.shape(), NAME, "expected y of the shape of x, ", x.shape(), ", got ",
          y.shape());
    check_same_dtype(NAME, "y", y, "x", x);
    auto outputs = mx::array::make_arrays(
        {x.shape(), x.shape()}, {x.dtype(), x.dtype()},
        wrap_if_emulated(std::make_shared<RmsNorm>(stream_for("rms_norm", x.dtype(), s), eps)),
        {x, y, weight});
    return {outputs[0], outputs[1]};
}

bool RmsNorm::is_equivalent(const mx::Primitive& other) const {
    return eps_ == static_cast<const RmsNorm&>(other).eps_;
}

std::vector<mx::Shape> RmsNorm::output_shapes(const std::vector<mx::array>& inputs) {
    return std::vector<mx::Shape>(inputs.size() - 1, inputs[0].shape());
}

}  // namespace tiny_llm_ext
