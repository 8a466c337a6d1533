// gated_rms_norm: argument checks and construction of the graph node.
#include "src/gated_rms_norm/gated_rms_norm.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array gated_rms_norm(const mx::array& o, const mx::array& z, const mx::array& weight, float eps,
                         mx::StreamOrDevice s) {
    constexpr const char* NAME = "gated_rms_norm";
    check(o.dtype() == mx::float32, NAME, "expected o in float32, got ", o.dtype());
    check_float(NAME, "z", z);
    check_not_scalar(NAME, "o", o);
    check(z.shape() == o.shape(), NAME, "expected z of the shape of o, ", o.shape(), ", got ",
          z.shape());
    check(weight.shape() == mx::Shape{o.shape(-1)}, NAME, "expected weight of shape (", o.shape(-1),
          "), the last dimension of o, got ", weight.shape());
    check(weight.dtype() == mx::float32 || weight.dtype() == z.dtype(), NAME,
          "expected weight in float32 or the dtype of z, ", z.dtype(), ", got ", weight.dtype());
    return mx::array(
        z.shape(), z.dtype(),
        wrap_if_emulated(std::make_shared<GatedRmsNorm>(stream_for(NAME, z.dtype(), s), eps)),
        {o, z, weight});
}

}  // namespace tiny_llm_ext
