// A program: a recording's tasks, captured, to be run again and again without MLX.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "src/recording/recording.h"

namespace tiny_llm_ext {

/// The tasks of a recording for inputs of one layout, in memory of the stream's workspace: inputs
/// are copied there, the tasks run, and outputs are copied from there. What lies in between is a
/// few kilobytes a token, and is shared by all programs of the stream, of which one runs at a time.
class Program {
   public:
    /// Captures the tasks. Inputs are looked at for where their elements lie, not for their values.
    Program(std::shared_ptr<const Recording> recording, const std::vector<mx::array>& inputs);

    /// Whether inputs lie in memory as those did that it was made for.
    bool fits(const std::vector<mx::array>& inputs) const;

    /// The arrays that hold the outputs after a run; they say where the elements are.
    const std::vector<mx::array>& outputs() const { return outputs_; }

    /// Runs the tasks, on the calling thread and its helpers.
    /// from, to: the memory of inputs and outputs.
    void run(const std::vector<const char*>& from, const std::vector<char*>& to) const;

   private:
    std::shared_ptr<const Recording> recording_;  // has the constants
    std::vector<mx::array> inputs_, outputs_, memory_;
    std::vector<std::function<void()>> tasks_;
};

/// Whether a program can have it as an input: it has no gaps.
inline bool is_dense(const mx::array& x) {
    return x.flags().contiguous && x.data_size() == x.size();
}

}  // namespace tiny_llm_ext
