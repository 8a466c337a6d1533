#include "src/recording/program.h"

#include <cassert>
#include <cstring>
#include <map>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Programs of a stream run one after the other, and nothing between inputs and outputs outlives a
// run: they share memory. It goes with the thread, but for what programs still have of it.
Capture::Workspace& workspace_of(mx::Stream stream) {
    thread_local std::map<int, Capture::Workspace> workspaces;
    return workspaces[stream.index];
}

}  // namespace

Program::Program(std::shared_ptr<const Recording> recording, const std::vector<mx::array>& inputs)
    : recording_(std::move(recording)) {
    Capture capture(workspace_of(recording_->stream()));
    for (const auto& input : inputs) {
        assert(is_dense(input));
        mx::array place(input.shape(), input.dtype(), nullptr, {});
        capture.allocate(place);
        inputs_.push_back(place);
        inputs_.back().copy_shared_buffer(place, input.strides(), input.flags(), input.size());
    }
    for (const auto& output : recording_->evaluate(inputs_, memory_)) {
        outputs_.push_back(is_dense(output) ? output
                                            : row_contiguous(output, recording_->stream()));
    }
    memory_.insert(memory_.end(), capture.memory.begin(), capture.memory.end());
    tasks_ = std::move(capture.tasks);
}

bool Program::fits(const std::vector<mx::array>& inputs) const {
    for (size_t i = 0; i < inputs.size(); i++) {
        if (inputs[i].strides() != inputs_[i].strides()) {
            return false;
        }
    }
    return true;
}

void Program::run(const std::vector<const char*>& from, const std::vector<char*>& to) const {
    for (size_t i = 0; i < from.size(); i++) {
        std::memcpy(const_cast<char*>(inputs_[i].data<char>()), from[i], inputs_[i].nbytes());
    }
    for (const auto& task : tasks_) {
        task();
    }
    for (size_t i = 0; i < to.size(); i++) {
        std::memcpy(to[i], outputs_[i].data<char>(), outputs_[i].nbytes());
    }
}

}  // namespace tiny_llm_ext
