// Subset of MLX's Metal interface used by the extension, for machines without Metal: the encoders
// (common/metal_device.cpp, src/<op>/<op>_metal.cpp) compile against it unchanged, and their
// dispatches are recorded for an emulator of Metal kernels.
//
// Names, arguments and behavior are those of MLX 0.32's mlx/backend/metal/device.h. Additions are
// at the end of each class.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "mlx/mlx.h"

namespace MTL {

struct Size {
    Size(size_t width, size_t height, size_t depth) : width(width), height(height), depth(depth) {}
    size_t width, height, depth;
};

/// A compiled kernel.
class ComputePipelineState {
   public:
    size_t maxTotalThreadsPerThreadgroup() const { return max_threads; }

    std::string library, kernel;
    size_t max_threads = 1024;
    std::set<int> written;  // indices of writable buffers
};

class Library {
   public:
    std::map<std::string, ComputePipelineState> kernels;
};

}  // namespace MTL

namespace mlx::core::metal {

/// One dispatch: a kernel with its arguments.
struct Command {
    struct Bound {
        int index;
        Dtype dtype;
        const array::Data*
            data;            // array data that owns the memory; this struct does not keep it alive
        const char* memory;  // lowest element address
        size_t bytes;        // from `memory` to the end of the highest element
        size_t lead;         // bytes from `memory` to the element at index 0
        bool is_output;
    };
    struct Bytes {
        int index;
        std::vector<uint8_t> data;
    };

    std::string operation;  // operation being evaluated
    const MTL::ComputePipelineState* pipeline = nullptr;
    std::vector<Bound> buffers;
    std::vector<Bytes> bytes;
    std::map<int, size_t> threadgroup_memory;
    std::vector<size_t> grid, group;
    bool has_barrier = false;  // a barrier precedes the command
};

/// Records the dispatches of a stream's operations.
///
/// Commands run concurrently unless separated by a barrier. A barrier precedes a command that reads
/// a buffer written since the last barrier, or writes a buffer read or written since (MLX:
/// CommandEncoder::set_input_array, register_output_array and maybeInsertBarrier). Tracking is per
/// buffer and relies on the declared roles: a write to an array bound as an input is not detected.
class CommandEncoder {
   public:
    void set_compute_pipeline_state(MTL::ComputePipelineState* pipeline);
    void set_input_array(const array& a, int index, int64_t offset = 0);
    void set_output_array(array& a, int index, int64_t offset = 0);
    void register_output_array(const array& a);
    void add_temporary(array a);
    void set_threadgroup_memory_length(size_t length, int index);
    void dispatch_threadgroups(MTL::Size grid, MTL::Size group);

    template <typename T>
    void set_bytes(const T* values, int n, int index) {
        const auto* first = reinterpret_cast<const uint8_t*>(values);
        command_.bytes.push_back({index, {first, first + n * sizeof(T)}});
    }

    // Additions to MLX's interface. begin and end enclose the evaluation of an operation. Its
    // commands run in `end` or, with `is_deferred`, in `run`. They throw std::runtime_error for
    // errors that would occur on a real GPU: memory freed before the commands have run, or
    // overwritten while other commands still read it.
    // `shares`: whether the first input may be overwritten although other arrays share its memory.
    void begin(const std::string& operation, const std::vector<array>& inputs, bool shares);
    void end(const std::vector<array>& inputs, const std::vector<array>& outputs);
    void run();
    void discard();  // discards all recorded commands, after an error

    bool is_deferred = false;
    size_t delay = 0;  // an operation stays in flight until `delay` later operations have run

   private:
    using Data = std::shared_ptr<array::Data>;

    // Buffer retained by operations in flight, and the number of these operations.
    struct Retained {
        Data data;
        int operations = 0;
    };

    void bind(const array& a, int index, int64_t offset, bool is_output);
    void check_in_place(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void check_lifetimes(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void clear_memory(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void retain(const std::vector<array>& inputs, const std::vector<array>& outputs);
    void complete_first();

    std::string operation_;
    std::vector<bool> may_overwrite_;  // per input
    Command command_;
    std::vector<Command> commands_;
    size_t first_command_ = 0;  // index of the current operation's first command
    std::vector<array> temporaries_;
    std::unordered_map<const array::Data*, Retained> retained_;
    std::deque<std::vector<const array::Data*>> in_flight_;  // retained buffers of each operation
    bool needs_barrier_ = false;
    std::unordered_set<const void*> previous_inputs_, previous_outputs_, next_inputs_,
        next_outputs_;
};

class Device {
   public:
    /// Compiles the source returned by `builder` on the first request for the library. Throws
    /// std::runtime_error with the compiler's messages.
    MTL::Library* get_library(const std::string& name, const std::function<std::string()>& builder);

    MTL::ComputePipelineState* get_kernel(const std::string& name, MTL::Library* library);

    // Addition to MLX's interface: the emulator. `compile` returns a library's kernels; `run` runs
    // commands, in any order between barriers; `failed` receives the reason why an operation did
    // not run, since the evaluator may attribute the error to another operation.
    struct Emulator {
        std::function<MTL::Library(const std::string& name, const std::string& text)> compile;
        std::function<void(const std::vector<Command>&)> run;
        std::function<void(const std::string& operation, const std::string& why)> failed;
    };
    Emulator emulator;
    void clear_libraries() { libraries_.clear(); }

   private:
    std::map<std::string, MTL::Library> libraries_;
};

Device& device(mlx::core::Device = mlx::core::Device::gpu);
CommandEncoder& get_command_encoder(Stream stream);

}  // namespace mlx::core::metal
