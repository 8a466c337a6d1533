// How an operation's work reaches the thread that does it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// While it lives, tasks that this thread adds are kept instead of being run, and `allocate` gives
/// out the workspace's memory: what is captured can be run again and again, in the same memory.
class Capture {
   public:
    using Tasks = std::vector<std::function<void()>>;
    using Workspace = std::vector<mlx::core::array>;

    /// workspace: blocks of any size, which grow as they are asked for. Captures that share it must
    /// not run at the same time.
    explicit Capture(Workspace& workspace);
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

    /// Gives `out` memory of the workspace that nothing else of this capture has, row by row.
    void allocate(mlx::core::array& out);

    /// What was added so far, and what it reads and writes besides what the caller holds.
    Tasks tasks;
    std::vector<mlx::core::array> memory;

    /// This thread's, or nullptr.
    static Capture* current();

   private:
    Workspace& workspace_;
    size_t used_ = 0;  // blocks
};

/// Runs `task` when all that was added to the stream before has run.
template <typename Task>
void add_task(mlx::core::Stream stream, Task task) {
    if (Capture* capture = Capture::current()) {
        capture->tasks.emplace_back(std::move(task));
    } else {
        mlx::core::cpu::get_command_encoder(stream).dispatch(std::move(task));
    }
}

/// Keeps an array's memory for the tasks that were added and for the one added next.
void keep_for_tasks(mlx::core::Stream stream, const mlx::core::array& x);

}  // namespace tiny_llm_ext
