#include "common/tasks.h"

#include <atomic>
#include <mutex>

#include "mlx/allocator.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

namespace {

std::mutex thrown_mutex;
std::exception_ptr first_thrown;
std::atomic<bool> has_thrown = false;

thread_local TaskCapture* capture_of_this_thread = nullptr;

// An array that owns newly allocated memory of `bytes` bytes.
mx::array block_of(size_t bytes) {
    mx::array block({static_cast<int>(bytes)}, mx::uint8, nullptr, {});
    block.set_data(mx::allocator::malloc(bytes));
    return block;
}

// An array that refers to the block's memory without owning it.
mx::array alias_of(const mx::array& block) {
    mx::array alias(block.shape(), block.dtype(), nullptr, {});
    alias.set_data({block.buffer(), [](mx::allocator::Buffer) {}});
    return alias;
}

}  // namespace

void store_task_error(std::exception_ptr thrown) {
    std::lock_guard lock(thrown_mutex);
    if (first_thrown == nullptr) {
        first_thrown = std::move(thrown);
        has_thrown = true;
    }
}

void rethrow_task_error() {
    if (!has_thrown.load(std::memory_order_relaxed)) {
        return;
    }
    std::exception_ptr thrown;
    {
        std::lock_guard lock(thrown_mutex);
        thrown = std::exchange(first_thrown, nullptr);
        has_thrown = false;
    }
    if (thrown != nullptr) {
        std::rethrow_exception(thrown);
    }
}

TaskCapture::TaskCapture(Workspace& workspace) : workspace_(workspace) {
    capture_of_this_thread = this;
}

TaskCapture::~TaskCapture() { capture_of_this_thread = nullptr; }

TaskCapture* TaskCapture::current() { return capture_of_this_thread; }

// Leases the smallest sufficient free block, or a new one.
TaskCapture::Lease& TaskCapture::lease(size_t bytes) {
    Lease* best = nullptr;
    for (Lease& lease : leases_) {
        if (lease.is_free() && lease.block.nbytes() >= bytes &&
            (best == nullptr || lease.block.nbytes() < best->block.nbytes())) {
            best = &lease;
        }
    }
    if (best != nullptr) {
        return *best;
    }
    if (leases_.size() == workspace_.size()) {
        workspace_.push_back(block_of(bytes));
    }
    mx::array& block = workspace_[leases_.size()];
    if (block.nbytes() < bytes) {
        block = block_of(bytes);  // captures that use the smaller block keep it alive
    }
    memory.push_back(block);
    leases_.push_back({block, alias_of(block)});
    return leases_.back();
}

void TaskCapture::allocate(mx::array& out) {
    out.copy_shared_buffer(lease(out.nbytes()).alias, out.strides(), {true, true, out.ndim() <= 1},
                           out.size());
}

void add_temporary(mx::Stream stream, const mx::array& x) {
    if (TaskCapture* capture = TaskCapture::current()) {
        capture->memory.push_back(x);
    } else {
        mx::cpu::get_command_encoder(stream).add_temporary(x);
    }
}

}  // namespace tiny_llm_ext
