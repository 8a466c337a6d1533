// Submodule tiny_llm_ext.metal.emulator: a GPU implemented by Python functions.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings_metal.h"
#include "common/metal_library.h"
#include "emulated_metal/emulated_node.h"
#include "mlx/backend/metal/device.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace tiny_llm_ext {

namespace mx = mlx::core;

namespace {

namespace gpu = mlx::core::metal;

const char* name_of_dtype(mx::Dtype dtype) {
    switch (dtype) {
        case mx::bool_:
            return "bool";
        case mx::uint8:
            return "uint8";
        case mx::uint16:
            return "uint16";
        case mx::uint32:
            return "uint32";
        case mx::uint64:
            return "uint64";
        case mx::int8:
            return "int8";
        case mx::int16:
            return "int16";
        case mx::int32:
            return "int32";
        case mx::int64:
            return "int64";
        case mx::float16:
            return "float16";
        case mx::float32:
            return "float32";
        case mx::bfloat16:
            return "bfloat16";
        default:
            return "other";
    }
}

// Converts a command to a dict of Python numbers, strings and tuples.
nb::dict as_dict(const gpu::Command& command) {
    nb::list buffers, bytes;
    for (const auto& buffer : command.buffers) {
        buffers.append(nb::make_tuple(buffer.index, reinterpret_cast<uintptr_t>(buffer.memory),
                                      buffer.bytes, buffer.lead, name_of_dtype(buffer.dtype)));
    }
    for (const auto& constant : command.bytes) {
        bytes.append(
            nb::make_tuple(constant.index, nb::bytes(constant.data.data(), constant.data.size())));
    }
    nb::dict dict;
    dict["operation"] = command.operation;
    dict["library"] = command.pipeline->library;
    dict["kernel"] = command.pipeline->kernel;
    dict["buffers"] = buffers;
    dict["bytes"] = bytes;
    dict["threadgroup_memory"] = nb::cast(command.threadgroup_memory);
    dict["grid"] = nb::cast(command.grid);
    dict["threads"] = nb::cast(command.group);
    dict["has_barrier"] = command.has_barrier;
    return dict;
}

MTL::Library compiled(const nb::callable& compile, const std::string& name,
                      const std::string& text) {
    nb::gil_scoped_acquire gil;
    MTL::Library library;
    nb::object kernels;
    try {
        kernels = compile(name, text);
    } catch (const nb::python_error& error) {
        throw std::runtime_error(nb::str(error.value()).c_str());  // as MLX does on a Mac
    }
    for (const auto& [kernel, properties] :
         nb::cast<std::map<std::string, std::tuple<size_t, std::vector<int>>>>(kernels)) {
        const auto& [max_threads, written] = properties;
        auto& pipeline = library.kernels[kernel];
        pipeline.library = name;
        pipeline.kernel = kernel;
        pipeline.max_threads = max_threads;
        pipeline.written = {written.begin(), written.end()};
    }
    return library;
}

void run(const nb::callable& function, const std::vector<gpu::Command>& commands) {
    nb::gil_scoped_acquire gil;
    nb::list list;
    for (const auto& command : commands) {
        list.append(as_dict(command));
    }
    function(list);
}

void finish() { gpu::get_command_encoder(emulated::gpu_stream()).run(); }

}  // namespace

void bind_emulator(nb::module_& parent) {
    nb::module_ m = parent.def_submodule("emulator", "Emulated GPU, for machines without Metal.");
    m.def(
        "attach",
        [](nb::object compile, nb::object run_commands, nb::object failed) {
            auto& emulator = gpu::device(mx::Device::gpu).emulator;
            gpu::device(mx::Device::gpu).clear_libraries();
            metal::clear_library_cache();
            if (compile.is_none()) {
                emulator = {};
                return;
            }
            const auto compiler = nb::cast<nb::callable>(compile);
            const auto runner = nb::cast<nb::callable>(run_commands);
            emulator.compile = [compiler](const std::string& name, const std::string& text) {
                return compiled(compiler, name, text);
            };
            emulator.run = [runner](const std::vector<gpu::Command>& commands) {
                run(runner, commands);
            };
            emulator.failed = [failed](const std::string& operation, const std::string& why) {
                nb::gil_scoped_acquire gil;
                if (!failed.is_none()) {
                    failed(operation, why);
                }
            };
        },
        "compile"_a.none(), "run"_a.none(), "failed"_a = nb::none(),
        R"(Sets the functions that implement the GPU; None detaches them.

Args:
    compile: takes a library's name and source, and returns for each kernel the maximum threads per
        threadgroup and the indices of writable buffers. Raises RuntimeError for a compile error.
    run: runs commands, each a dict. Commands not separated by `has_barrier` may run in any order.
    failed: called with the name of an operation that did not run, and the reason.
)");
    m.def("stream", [] { return emulated::gpu_stream(); }, "The stream that represents the GPU.");
    m.def(
        "set_delay",
        [](size_t operations) {
            gpu::get_command_encoder(emulated::gpu_stream()).delay = operations;
        },
        "operations"_a,
        "Sets for how many later operations an operation stays in flight, which keeps its inputs "
        "alive.");
    m.def(
        "defer",
        [](bool is_deferred) {
            gpu::get_command_encoder(emulated::gpu_stream()).is_deferred = is_deferred;
        },
        "is_deferred"_a,
        "Sets whether commands are queued until `finish` instead of running at once.");
    m.def("finish", &finish, "Runs the queued commands.");
    m.def(
        "discard", [] { gpu::get_command_encoder(emulated::gpu_stream()).discard(); },
        "Discards the queued commands.");
}

}  // namespace tiny_llm_ext
