#include "src/graph_capture/executable.h"

#include <cassert>
#include <cstring>
#include <map>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Memory for the intermediate results of a stream's executables, which run one at a time and can
// therefore share it. Freed when the thread ends, except blocks still used by executables.
TaskCapture::Workspace& workspace_of(mx::Stream stream) {
    thread_local std::map<int, TaskCapture::Workspace> workspaces;
    return workspaces[stream.index];
}

}  // namespace

ExecutableGraph::Slot ExecutableGraph::slot_of(const mx::array& x, bool is_copied) {
    return {const_cast<char*>(x.data<char>()), is_copied ? x.nbytes() : 0, x.data_size(),
            x.strides(), x.flags()};
}

ExecutableGraph::ExecutableGraph(std::shared_ptr<const CapturedGraph> graph,
                                 const std::vector<mx::array>& inputs)
    : graph_(std::move(graph)) {
    TaskCapture capture(workspace_of(graph_->stream()));
    std::vector<mx::array> arrays;
    for (size_t i = 0; i < inputs.size(); i++) {
        assert(is_dense(inputs[i]));
        const bool is_copied = !graph_->overwrites(i);
        mx::array array(inputs[i].shape(), inputs[i].dtype(), nullptr, {});
        if (is_copied) {
            capture.allocate(array);
            array.copy_shared_buffer(array, inputs[i].strides(), inputs[i].flags(),
                                     inputs[i].size());
        } else {
            array.copy_shared_buffer(inputs[i]);
        }
        inputs_.push_back(slot_of(array, is_copied));
        arrays.push_back(array);
    }
    const auto results = graph_->evaluate(arrays);
    for (size_t i = 0; i < results.size(); i++) {
        const auto& result = results[i];
        outputs_.push_back(
            slot_of(is_dense(result) ? result : row_contiguous(result, graph_->stream()),
                    graph_->overwritten_input(i) < 0));
    }
    memory_ = std::move(capture.memory);
    tasks_ = std::move(capture.tasks);
}

bool ExecutableGraph::fits(const std::vector<mx::array>& inputs) const {
    // [task 4.7.3 fits]
    for (size_t i = 0; i < inputs.size(); i++) {
        if (graph_->overwrites(i) ? inputs[i].data<char>() != inputs_[i].data
                                  : inputs[i].strides() != inputs_[i].strides) {
            return false;
        }
    }
    return true;
    // [/task 4.7.3 fits]
}

void ExecutableGraph::allocate_output(size_t index, const std::vector<mx::array>& inputs,
                                      mx::array& out) const {
    if (const int input = graph_->overwritten_input(index); input >= 0) {
        out.copy_shared_buffer(inputs[input]);
        return;
    }
    const Slot& slot = outputs_[index];
    allocate(out);
    out.copy_shared_buffer(out, slot.strides, slot.flags, slot.size);
}

void ExecutableGraph::run(const std::vector<const char*>& from,
                          const std::vector<char*>& to) const {
    for (size_t i = 0; i < from.size(); i++) {
        std::memcpy(inputs_[i].data, from[i], inputs_[i].bytes);
    }
    for (const auto& task : tasks_) {
        task();
    }
    for (size_t i = 0; i < to.size(); i++) {
        std::memcpy(to[i], outputs_[i].data, outputs_[i].bytes);
    }
}

}  // namespace tiny_llm_ext
