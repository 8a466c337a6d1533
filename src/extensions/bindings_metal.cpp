// The submodule tiny_llm_ext.metal: the launches of the Metal kernels, on every platform, so that
// an emulator may run what the GPU would be given.
#include "bindings_metal.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>

#include "common/metal_copy_launch.h"
#include "common/metal_device.h"
#include "common/metal_launch.h"
#include "src/axpby/axpby_launch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm_ext {

namespace {

Format format_named(const std::string& name) {
    for (Format format : {Format::float32, Format::float16, Format::bfloat16}) {
        if (name == name_of(format)) {
            return format;
        }
    }
    throw std::invalid_argument("[metal] expected dtype float32, float16 or bfloat16, got " + name);
}

std::tuple<int64_t, int64_t, int64_t> as_tuple(const Extent& extent) {
    return {extent.x, extent.y, extent.z};
}

void bind_launch(nb::module_& m) {
    nb::class_<MetalLaunch>(m, "Launch", "How a kernel is started.")
        .def_ro("kernel", &MetalLaunch::kernel, "Its name in the library.")
        .def_prop_ro(
            "groups", [](const MetalLaunch& launch) { return as_tuple(launch.groups); },
            "Threadgroups in the grid: x, y, z.")
        .def_prop_ro(
            "threads", [](const MetalLaunch& launch) { return as_tuple(launch.threads); },
            "Threads in a threadgroup: x, y, z.")
        .def_ro("threadgroup_bytes", &MetalLaunch::threadgroup_bytes,
                "Of the kernel's [[threadgroup(0)]]; 0 if it has none.")
        .def_prop_ro(
            "params",
            [](const MetalLaunch& launch) {
                return nb::bytes(launch.params.data(), launch.params.size());
            },
            "The bytes of its params struct, the last buffer.");
}

}  // namespace

void bind_metal(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("metal", "How each operation starts its Metal kernels.");
    bind_launch(m);
    m.def(
        "library_path", [] { return metal::library_path(); },
        "The compiled kernels beside the module; empty if they were not built.");

    m.def("copy_launch", &copy_launch, "shape"_a, "strides"_a, "item_size"_a,
          "max_threads"_a = MAX_THREADS, "Any strides into row-major order: source, copy.");

    m.def(
        "axpby_launch",
        [](int64_t size, float alpha, float beta, const std::string& dtype, int max_threads) {
            return axpby_launch(size, alpha, beta, format_named(dtype), max_threads);
        },
        "size"_a, "alpha"_a, "beta"_a, "dtype"_a, "max_threads"_a = MAX_THREADS,
        "Buffers: x, y, z.");
}

}  // namespace tiny_llm_ext
