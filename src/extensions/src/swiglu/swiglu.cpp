// swiglu: argument checks and construction of the graph node.
#include "src/swiglu/swiglu.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array swiglu(const mx::array& gate, const mx::array& up, mx::StreamOrDevice s) {
    constexpr const char* NAME = "swiglu";
    check_float(NAME, "gate", gate);
    check_same_dtype(NAME, "up", up, "gate", gate);
    check_not_scalar(NAME, "gate", gate);
    check(up.shape() == gate.shape(), NAME, "expected up of the shape of gate, ", gate.shape(),
          ", got ", up.shape());
    return mx::array(
        gate.shape(), gate.dtype(),
        wrap_if_emulated(std::make_shared<Swiglu>(stream_for("swiglu", gate.dtype(), s))),
        {gate, up});
}

}  // namespace tiny_llm_ext
