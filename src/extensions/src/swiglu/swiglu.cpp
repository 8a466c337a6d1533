// swiglu: validation and graph.
#include "src/swiglu/swiglu.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s) {
    constexpr const char* NAME = "swiglu";
    check(is_float(gate.dtype()), NAME, "expected gate in float32, float16 or bfloat16, got ",
          gate.dtype());
    check(up.dtype() == gate.dtype(), NAME, "expected up in the dtype of gate, ", gate.dtype(),
          ", got ", up.dtype());
    check(gate.ndim() >= 1, NAME, "expected gate with at least one dimension, got a scalar");
    check(up.shape() == gate.shape(), NAME, "expected up of the shape of gate, ", gate.shape(),
          ", got ", up.shape());
    return mx::array(
        gate.shape(), gate.dtype(),
        wrap_if_emulated(std::make_shared<Swiglu>(stream_for("swiglu", gate.dtype(), s))),
        {gate, up});
}

}  // namespace tiny_llm_ext
