// The operations as Python functions. The docstrings are what `help(tiny_llm_ext)` shows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include "src/axpby/axpby.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_ext, m) {
    m.def("axpby", &tiny_llm_ext::axpby, "x"_a, "y"_a, "alpha"_a, "beta"_a, nb::kw_only(),
          "stream"_a = nb::none(),
          R"(alpha · x + beta · y, elementwise.

Args:
    x, y: arrays whose shapes broadcast, any dtypes.
    alpha, beta: numbers.
    stream: where to compute; MLX's default if None.

Returns:
    The broadcast shape, in the promoted dtype (float32 for integers).
)");
}
