// Executable graph: captured tasks that run repeatedly without MLX.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/graph_capture/graph.h"

namespace tiny_llm_ext {

/// The tasks of a graph for one memory layout of the inputs. `run` copies the inputs to the
/// stream's workspace, runs the tasks, and copies the outputs from the workspace. The workspace, a
/// few kilobytes per token, is shared by all executables of the stream, because only one of them
/// runs at a time.
///
/// An overwritten input, such as a KV cache buffer, is not copied: the tasks write to its address
/// at capture, and a buffer at another address needs another executable.
class ExecutableGraph {
   public:
    /// Captures the tasks. Uses the layout of the inputs, not their values.
    ExecutableGraph(std::shared_ptr<const CapturedGraph> graph,
                    const std::vector<mx::array>& inputs);

    /// Whether the inputs have the captured memory layout, and overwritten inputs their captured
    /// addresses.
    bool fits(const std::vector<mx::array>& inputs) const;

    /// Allocates the memory of an output: new memory, to which `run` copies the output, or the
    /// memory of the input that the output overwrites.
    void allocate_output(size_t index, const std::vector<mx::array>& inputs, mx::array& out) const;

    /// Runs the tasks, on the calling thread and the thread pool.
    /// from: memory of the inputs. to: memory of the outputs.
    void run(const std::vector<const char*>& from, const std::vector<char*>& to) const;

   private:
    // Address and layout of an input or output while the tasks run. Non-owning, because a reference
    // to a KV cache buffer would prevent other operations from writing to it in place.
    struct Slot {
        char* data;
        size_t bytes;  // number of bytes to copy; 0 if overwritten in place
        size_t size;
        mx::Strides strides;
        mx::array::Flags flags;
    };

    static Slot slot_of(const mx::array& x, bool is_copied);

    std::shared_ptr<const CapturedGraph> graph_;  // owns the constants
    std::vector<Slot> inputs_, outputs_;
    std::vector<mx::array> memory_;
    std::vector<std::function<void()>> tasks_;
};

/// Whether the elements of `x` have no gaps, as an executable requires of its inputs.
inline bool is_dense(const mx::array& x) {
    return x.flags().contiguous && x.data_size() == x.size();
}

}  // namespace tiny_llm_ext
