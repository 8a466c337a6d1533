#include "common/tasks.h"

#include "mlx/allocator.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

namespace {

thread_local Capture* capture_of_this_thread = nullptr;

// A block of memory, as an array of bytes that owns it.
mx::array block_of(int bytes) {
    mx::array block({bytes}, mx::uint8, nullptr, {});
    block.set_data(mx::allocator::malloc(bytes));
    return block;
}

}  // namespace

Capture::Capture(Workspace& workspace) : workspace_(workspace) { capture_of_this_thread = this; }

Capture::~Capture() { capture_of_this_thread = nullptr; }

Capture* Capture::current() { return capture_of_this_thread; }

void Capture::allocate(mx::array& out) {
    if (used_ == workspace_.size()) {
        workspace_.push_back(block_of(static_cast<int>(out.nbytes())));
    }
    mx::array& block = workspace_[used_++];
    if (block.nbytes() < out.nbytes()) {
        block = block_of(static_cast<int>(out.nbytes()));  // older captures keep theirs
    }
    memory.push_back(block);
    out.copy_shared_buffer(block, out.strides(), {true, true, out.ndim() <= 1}, out.size());
}

void keep_for_tasks(mx::Stream stream, const mx::array& x) {
    if (Capture* capture = Capture::current()) {
        capture->memory.push_back(x);
    } else {
        mx::cpu::get_command_encoder(stream).add_temporary(x);
    }
}

}  // namespace tiny_llm_ext
