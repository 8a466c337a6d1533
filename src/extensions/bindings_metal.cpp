// Submodule tiny_llm_ext.metal: launch configurations of the Metal kernels, on every platform, so
// that the emulator runs kernels with exactly the GPU's configurations.
#include "bindings_metal.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <tuple>

#include "common/metal_copy_launch.h"
#include "common/metal_launch.h"
#include "common/metal_library.h"
#include "common/metal_run.h"
#include "common/metal_sources.h"
#include "src/axpby/axpby_launch.h"
#include "src/cache_write/cache_write_launch.h"
#include "src/quantized_embedding/quantized_embedding_launch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm_ext {

Format format_named(const std::string& name) {
    for (Format format : {Format::float32, Format::float16, Format::bfloat16}) {
        if (name == name_of(format)) {
            return format;
        }
    }
    throw std::invalid_argument("[metal] expected dtype float32, float16 or bfloat16, got " + name);
}

namespace {

std::tuple<int64_t, int64_t, int64_t> as_tuple(const Extent& extent) {
    return {extent.x, extent.y, extent.z};
}

void bind_launch(nb::module_& m) {
    nb::class_<MetalLaunch>(m, "Launch", "Launch of a Metal kernel.")
        .def_ro("kernel", &MetalLaunch::kernel, "Name of the kernel.")
        .def_prop_ro(
            "groups", [](const MetalLaunch& launch) { return as_tuple(launch.groups); },
            "Threadgroups in the grid: x, y, z.")
        .def_prop_ro(
            "threads", [](const MetalLaunch& launch) { return as_tuple(launch.threads); },
            "Threads in a threadgroup: x, y, z.")
        .def_ro("threadgroup_bytes", &MetalLaunch::threadgroup_bytes,
                "Size of the kernel's [[threadgroup(0)]]; 0 if unused.")
        .def_prop_ro(
            "params",
            [](const MetalLaunch& launch) {
                return nb::bytes(launch.params.data(), launch.params.size());
            },
            "Bytes of the params struct, the last buffer.");
}

}  // namespace

void bind_metal(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("metal", "Launches of each operation's Metal kernels.");
    bind_launch(m);
    nb::class_<metal::LibraryState>(m, "LibraryState", "Compilation state of a file's kernels.")
        .def_ro("file", &metal::LibraryState::file, "The .metal file, without suffix.")
        .def_ro("state", &metal::LibraryState::state, "compiled, not tried or failed.")
        .def_ro("message", &metal::LibraryState::message, "Compiler message, if failed.");
    m.def("library_states", &metal::library_states,
          "Compilation state of each .metal file's kernels, which are compiled on first use.");
    m.def("compile_file", &metal::compile_file, "file"_a,
          "Compiles a .metal file's kernels for all dtypes; `library_states` has the result.");
    m.def("sources", &metal::sources,
          "Kernel sources for the GPU's compiler, by file name without suffix.");

    m.def("run", &metal_run, "launch"_a, "inputs"_a, "outputs"_a, nb::kw_only(),
          "stream"_a = nb::none(),
          R"(Runs a launch on the GPU or the emulated GPU.

Args:
    launch: from one of the functions below.
    inputs: the kernel's input buffers, bound without a copy whatever their strides.
    outputs: initial contents of the kernel's output buffers.
    stream: a GPU stream; MLX's default if None.

Returns:
    Final contents of the output buffers.
)");

    m.def("copy_launch", &copy_launch, "shape"_a, "strides"_a, "item_size"_a,
          "max_threads"_a = MAX_THREADS,
          "Copies an array of any strides to row-major order. Buffers: source, copy.");

    m.def(
        "axpby_launch",
        [](int64_t size, float alpha, float beta, const std::string& dtype, int max_threads) {
            return axpby_launch(size, alpha, beta, format_named(dtype), max_threads);
        },
        "size"_a, "alpha"_a, "beta"_a, "dtype"_a, "max_threads"_a = MAX_THREADS,
        "Buffers: x, y, z.");

    m.def(
        "cache_write_launch",
        [](int B, int H, int C, int L, int D, const std::array<int64_t, 4>& token_strides,
           int item_size, int max_threads) {
            CacheWriteParams params = {H, C, L, D, {}};
            std::copy(token_strides.begin(), token_strides.end(), params.token_strides);
            return cache_write_launch(B, params, item_size, max_threads);
        },
        "B"_a, "H"_a, "C"_a, "L"_a, "D"_a, "token_strides"_a, "item_size"_a,
        "max_threads"_a = MAX_THREADS, "Buffers: tokens, offsets, the cache.");

    m.def(
        "quantized_embedding_launch",
        [](int64_t N, int V, int E, int group_size, int bits, bool ids_are_signed,
           const std::string& dtype, int max_threads) {
            return quantized_embedding_launch(N, V, E, group_size, bits, ids_are_signed,
                                              format_named(dtype), max_threads);
        },
        "N"_a, "V"_a, "E"_a, "group_size"_a, "bits"_a, "ids_are_signed"_a, "dtype"_a,
        "max_threads"_a = MAX_THREADS, "Buffers: ids, scales, biases, weight, out.");
    bind_metal_matmul(m);
    bind_metal_attention(m);
#ifdef TINY_LLM_EMULATED_METAL
    bind_emulator(m);
#endif
}

}  // namespace tiny_llm_ext
