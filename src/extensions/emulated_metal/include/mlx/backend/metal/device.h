// MLX's interface to Metal, as far as the extension uses it, for machines without Metal: the code
// that starts kernels (common/metal_device.cpp, src/<op>/<op>_metal.cpp) is compiled against it,
// unchanged, and what it asks of the GPU is recorded and given to an emulator of Metal kernels.
//
// Names, arguments and behaviour are those of MLX 0.32's mlx/backend/metal/device.h. What is not
// MLX's is at the end of each class.
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
    std::set<int> written;  // indices of the buffers that it may write to
};

class Library {
   public:
    std::map<std::string, ComputePipelineState> kernels;
};

}  // namespace MTL

namespace mlx::core::metal {

/// One dispatch: a kernel with all that it was given.
struct Command {
    struct Bound {
        int index;
        Dtype dtype;
        const array::Data* data;  // whose memory it is; it is not kept
        const char* memory;       // the lowest address of an element
        size_t bytes;             // up to the end of the highest
        size_t lead;              // from the lowest address to the first element
        bool is_output;
    };
    struct Bytes {
        int index;
        std::vector<uint8_t> data;
    };

    std::string operation;  // of whose evaluation it is part
    const MTL::ComputePipelineState* pipeline = nullptr;
    std::vector<Bound> buffers;
    std::vector<Bytes> bytes;
    std::map<int, size_t> threadgroup_memory;
    std::vector<size_t> grid, group;
    bool has_barrier = false;  // before it
};

/// Records what a stream's operations dispatch.
///
/// Commands run at the same time unless a barrier stands between them. There is one before a
/// command that reads what a command since the last barrier wrote, or writes what one read or wrote
/// (MLX: CommandEncoder::set_input_array, register_output_array and maybeInsertBarrier). "What"
/// is whole buffers, and what MLX was told: a kernel that writes to an array bound as an input
/// goes unseen.
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

    // What follows is not MLX's. An operation's evaluation, from its first command to its last; its
    // commands run at the end, or with `is_deferred` when `run` is called. Throws
    // std::runtime_error for what would go wrong on a GPU: memory that is freed before the
    // commands have run, or that others still read when it is written.
    void begin(const std::string& operation, const std::vector<array>& inputs);
    void end(const std::vector<array>& inputs, const std::vector<array>& outputs);
    void run();
    void forget();  // all that was recorded, after an error

    bool is_deferred = false;
    size_t delay = 0;  // for how many more operations the GPU counts as busy with one

   private:
    using Data = std::shared_ptr<array::Data>;

    // Memory that commands in flight read, and of how many operations they are.
    struct Kept {
        Data data;
        int operations = 0;
    };

    void bind(const array& a, int index, int64_t offset, bool is_output);
    void check_in_place(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void check_lifetimes(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void clear_memory(const std::vector<array>& inputs, const std::vector<array>& outputs) const;
    void keep(const std::vector<array>& inputs, const std::vector<array>& outputs);
    void complete_first();

    std::string operation_;
    std::vector<bool> may_overwrite_;  // of each input
    Command command_;
    std::vector<Command> commands_;
    size_t first_command_ = 0;  // of this operation
    std::vector<array> temporaries_;
    std::unordered_map<const array::Data*, Kept> kept_;
    std::deque<std::vector<const array::Data*>> in_flight_;  // an entry an operation
    bool needs_barrier_ = false;
    std::unordered_set<const void*> previous_inputs_, previous_outputs_, next_inputs_,
        next_outputs_;
};

class Device {
   public:
    /// Compiles the text that `builder` returns when the library is first asked for. Throws
    /// std::runtime_error with the compiler's messages.
    MTL::Library* get_library(const std::string& name, const std::function<std::string()>& builder);

    MTL::ComputePipelineState* get_kernel(const std::string& name, MTL::Library* library);

    // Not MLX's: the emulator. `compile` returns a library's kernels; `run` runs commands, of which
    // those without a barrier between them may run in any order; `failed` is told why an operation
    // did not run, as whoever evaluates a graph may take an error for one of its input's.
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
