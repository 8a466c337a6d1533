#include "src/recording/recorder.h"

#include <stdexcept>

#include "common/rows.h"
#include "common/tasks.h"

namespace tiny_llm_ext {

namespace {

// Of a function. Each thread has a stream and so recordings of its own, and threads end.
constexpr size_t MOST_RECORDINGS = 128;

}  // namespace

std::optional<std::vector<mx::array>> Recorder::replay(const std::vector<mx::array>& inputs) const {
    const mx::Stream stream = mx::default_stream(mx::Device::cpu);
    for (const auto& replay : replays_) {
        const auto& recording = static_cast<const Replay&>(*replay).recording();
        if (recording.fits(inputs, stream)) {
            return mx::array::make_arrays(recording.output_shapes(), recording.output_dtypes(),
                                          replay, inputs);
        }
    }
    return std::nullopt;
}

std::vector<mx::array> Recorder::placeholders(const std::vector<mx::array>& inputs) {
    std::vector<mx::array> blanks;
    for (const auto& input : inputs) {
        blanks.emplace_back(input.shape(), input.dtype(), nullptr, std::vector<mx::array>{});
    }
    return blanks;
}

void Recorder::record(const std::vector<mx::array>& placeholders,
                      const std::vector<mx::array>& outputs) {
    if (replays_.size() == MOST_RECORDINGS) {
        replays_.erase(replays_.begin());
    }
    replays_.push_back(
        std::make_shared<Replay>(std::make_shared<const Recording>(placeholders, outputs)));
}

void Replay::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    std::vector<mx::array> dense;
    for (const auto& input : inputs) {
        dense.push_back(is_dense(input) ? input : row_contiguous(input, stream()));
    }
    if (!recording_->can_be_captured()) {
        std::vector<mx::array> between;
        const auto results = recording_->evaluate(dense, between);
        for (size_t i = 0; i < outputs.size(); i++) {
            outputs[i].copy_shared_buffer(results[i]);
        }
        for (const auto& x : between) {
            keep_for_tasks(stream(), x);
        }
        add_task(stream(), [recording = recording_] {});  // keeps the constants until then
        return;
    }
    const auto program = program_for(dense);
    std::vector<const char*> from;
    std::vector<char*> to;
    for (const auto& input : dense) {
        from.push_back(input.data<char>());
    }
    for (size_t i = 0; i < outputs.size(); i++) {
        const auto& result = program->outputs()[i];
        allocate(outputs[i]);
        outputs[i].copy_shared_buffer(outputs[i], result.strides(), result.flags(),
                                      result.data_size());
        to.push_back(outputs[i].data<char>());
    }
    add_task(stream(),
             [program, from = std::move(from), to = std::move(to)] { program->run(from, to); });
}

void Replay::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    throw std::logic_error("[recording] a GPU's graph has no such node");
}

std::vector<mx::Shape> Replay::output_shapes(const std::vector<mx::array>&) {
    return recording_->output_shapes();
}

std::shared_ptr<const Program> Replay::program_for(const std::vector<mx::array>& inputs) {
    std::lock_guard lock(mutex_);
    for (const auto& program : programs_) {
        if (program->fits(inputs)) {
            return program;
        }
    }
    programs_.push_back(std::make_shared<const Program>(recording_, inputs));
    return programs_.back();
}

}  // namespace tiny_llm_ext
