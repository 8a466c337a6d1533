// How an operation's work reaches the thread that does it.
#pragma once

#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// While it lives, tasks that this thread adds are kept instead of being run, and `allocate` gives
/// out the workspace's memory: what is captured can be run again and again, in the same memory.
/// Tasks run in order, so memory that no array refers to any more is given out again.
class TaskCapture {
   public:
    using Tasks = std::vector<std::function<void()>>;
    using Workspace = std::vector<mlx::core::array>;

    /// workspace: blocks of any size, which grow as they are asked for. Captures that share it must
    /// not run at the same time.
    explicit TaskCapture(Workspace& workspace);
    ~TaskCapture();
    TaskCapture(const TaskCapture&) = delete;
    TaskCapture& operator=(const TaskCapture&) = delete;

    /// Gives `out` memory of the workspace that no living array has, row by row.
    void allocate(mlx::core::array& out);

    /// What was added so far, and the memory that it works in besides what the caller holds.
    Tasks tasks;
    std::vector<mlx::core::array> memory;

    /// This thread's, or nullptr.
    static TaskCapture* current();

   private:
    // A block of the workspace, and what arrays share of it: as many references as there are arrays
    // that have its memory, and one more.
    struct Lease {
        mlx::core::array block, lent;

        bool is_free() const { return lent.data_shared_ptr().use_count() == 1; }
    };

    Lease& lease(size_t bytes);

    Workspace& workspace_;
    std::vector<Lease> leases_;  // of the workspace's first blocks
};

/// Throws what the first task has thrown since this last threw, if one has. A task runs in a thread
/// of its stream, where nobody can catch it; so it is kept until here.
void rethrow_task_error();

/// Keeps what a task has thrown.
void store_task_error(std::exception_ptr thrown);

/// Runs `task` when all that was added to the stream before has run. Throws what a task has thrown
/// that ran before.
template <typename Task>
void add_task(mlx::core::Stream stream, Task task) {
    rethrow_task_error();
    if (TaskCapture* capture = TaskCapture::current()) {
        capture->tasks.emplace_back(std::move(task));
        return;
    }
    mlx::core::cpu::get_command_encoder(stream).dispatch([task = std::move(task)]() mutable {
        try {
            task();
        } catch (...) {
            store_task_error(std::current_exception());
        }
    });
}

/// Keeps an array's memory for the tasks that were added and for the one added next.
void add_temporary(mlx::core::Stream stream, const mlx::core::array& x);

/// Whether an operation may write into its input `x` and call that its output, because nothing else
/// will read x. What is captured may always: a recording sees to that (src/graph_capture/graph.h).
inline bool can_overwrite(const mlx::core::array& x) {
    return x.flags().row_contiguous && (TaskCapture::current() != nullptr || x.is_donatable());
}

}  // namespace tiny_llm_ext
