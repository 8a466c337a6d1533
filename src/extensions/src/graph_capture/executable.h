// A executable: a graph's tasks, captured, to be run again and again without MLX.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/graph_capture/graph.h"

namespace tiny_llm_ext {

/// The tasks of a graph for inputs of one layout, in memory of the stream's workspace: inputs
/// are copied there, the tasks run, and outputs are copied from there. What lies in between is a
/// few kilobytes a token, and is shared by all executables of the stream, of which one runs at a
/// time.
///
/// An input that is overwritten, a KV cache's buffer, is not copied: the tasks write to the place
/// where it was when they were captured, and a buffer elsewhere needs another executable.
class ExecutableGraph {
   public:
    /// Captures the tasks. Inputs are looked at for where their elements lie, not for their values.
    ExecutableGraph(std::shared_ptr<const CapturedGraph> graph,
                    const std::vector<mx::array>& inputs);

    /// Whether inputs lie in memory as those did that it was made for.
    bool fits(const std::vector<mx::array>& inputs) const;

    /// Gives an output the memory that a run will leave it in, or from which it will be copied.
    void allocate_output(size_t index, const std::vector<mx::array>& inputs, mx::array& out) const;

    /// Runs the tasks, on the calling thread and its helpers.
    /// from, to: the memory of inputs and outputs.
    void run(const std::vector<const char*>& from, const std::vector<char*>& to) const;

   private:
    // Where an input or an output is while the tasks run, and how its elements lie. It owns
    // nothing: a reference to the buffer of a KV cache would keep others from overwriting it.
    struct Slot {
        char* data;
        size_t bytes;  // to copy; 0 if it is overwritten where it is
        size_t size;
        mx::Strides strides;
        mx::array::Flags flags;
    };

    static Slot slot_of(const mx::array& x, bool is_copied);

    std::shared_ptr<const CapturedGraph> graph_;  // has the constants
    std::vector<Slot> inputs_, outputs_;
    std::vector<mx::array> memory_;
    std::vector<std::function<void()>> tasks_;
};

/// Whether a executable can have it as an input: it has no gaps.
inline bool is_dense(const mx::array& x) {
    return x.flags().contiguous && x.data_size() == x.size();
}

}  // namespace tiny_llm_ext
