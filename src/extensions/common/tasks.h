// Dispatch of an operation's work to its stream's thread.
#pragma once

#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// Scope in which this thread's tasks are captured instead of run, and `allocate` uses the
/// workspace, so that the tasks can be replayed in the same memory. Tasks run in order, so later
/// tasks reuse memory that no array references any more.
class TaskCapture {
   public:
    using Tasks = std::vector<std::function<void()>>;
    using Workspace = std::vector<mlx::core::array>;

    /// workspace: memory blocks, which may be empty and grow on demand. Tasks of captures that
    /// share a workspace must not run concurrently.
    explicit TaskCapture(Workspace& workspace);
    ~TaskCapture();
    TaskCapture(const TaskCapture&) = delete;
    TaskCapture& operator=(const TaskCapture&) = delete;

    /// Allocates `out`, row-major, in workspace memory that no live array uses.
    void allocate(mlx::core::array& out);

    /// Captured tasks, and the arrays that keep their memory alive.
    Tasks tasks;
    std::vector<mlx::core::array> memory;

    /// This thread's capture, or nullptr.
    static TaskCapture* current();

   private:
    // A workspace block, and a non-owning array of its memory, whose reference count is one plus
    // the number of arrays allocated in the block.
    struct Lease {
        mlx::core::array block, alias;

        bool is_free() const { return alias.data_shared_ptr().use_count() == 1; }
    };

    Lease& lease(size_t bytes);

    Workspace& workspace_;
    std::vector<Lease> leases_;  // leases_[i] is the lease of workspace_[i]
};

/// Rethrows the first pending exception of a task, if any. Tasks run in their stream's thread,
/// where an exception cannot be caught, so it is stored until this call.
void rethrow_task_error();

/// Stores a task's exception, unless one is pending.
void store_task_error(std::exception_ptr thrown);

/// Enqueues `task` on the stream, in order. Rethrows a pending exception of an earlier task.
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

/// Keeps an array's memory alive until the tasks added so far, and the next task, have run.
void add_temporary(mlx::core::Stream stream, const mlx::core::array& x);

/// Whether an operation may write its output in place over input `x`: x is row-major and has no
/// other readers, as graph capture guarantees (src/graph_capture/graph.h), or the caller allows it.
inline bool can_overwrite(const mlx::core::array& x, bool is_allowed = false) {
    return x.flags().row_contiguous &&
           (is_allowed || TaskCapture::current() != nullptr || x.is_donatable());
}

}  // namespace tiny_llm_ext
