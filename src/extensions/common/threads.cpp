// Thread pool whose workers spin briefly after each job before they sleep.
//
// A decode step is a few hundred kernels of tens of microseconds. Waking a sleeping thread takes
// about 45 µs on a virtual machine, so workers must not sleep between kernels; nor may they spin
// indefinitely, or an idle engine would occupy its cores.
#include "common/threads.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "common/schedule.h"

namespace tiny_llm_ext {

namespace {

constexpr auto SPIN = std::chrono::microseconds(100);

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int usable_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return CPU_COUNT(&set);
    }
#endif
    return std::max(1u, std::thread::hardware_concurrency());
}

int configured_threads() {
    const char* text = std::getenv("TINY_LLM_NUM_THREADS");
    if (text == nullptr || *text == '\0') {
        return usable_cores();
    }
    char* end = nullptr;
    const long count = std::strtol(text, &end, 10);
    if (*end != '\0' || count < 1 || count > 1024) {
        throw std::invalid_argument(
            "TINY_LLM_NUM_THREADS must be a whole number from 1 to 1024, got \"" +
            std::string(text) + "\".");
    }
    return static_cast<int>(count);
}

class Pool {
   public:
    explicit Pool(int threads)
        : threads_(threads), runs_(std::make_unique<ChunkRange<std::atomic<uint64_t>>[]>(threads)) {
        for (int thread = 1; thread < threads; thread++) {
            std::thread([this, thread] { work(thread); }).detach();
        }
    }

    void run(int64_t chunks, detail::Chunk run, const void* body) {
        std::lock_guard lock(job_mutex_);
        const SharedJob job = {job_.load(std::memory_order_relaxed) + 1, chunks, threads_};
        // Invalidate all tickets first: a worker still in the previous job may read the state
        // stored below, but finds no valid ticket for its job.
        for (int i = 0; i < threads_; i++) {
            runs_[i].ticket.exchange(job.ticket(CHUNK_BITS), std::memory_order_acq_rel);
        }
        run_.store(run, std::memory_order_release);
        body_.store(body, std::memory_order_release);
        chunks_.store(chunks, std::memory_order_release);
        next_.store(current_schedule(), std::memory_order_release);
        done_.store(0, std::memory_order_relaxed);
        for (int i = 0; i < threads_; i++) {
            runs_[i].ticket.store(job.ticket(job.begin(i)), std::memory_order_release);
        }
        job_.store(job.number, std::memory_order_release);
        job_.notify_all();
        take_chunks(job.number, 0);
        while (done_.load(std::memory_order_acquire) < chunks) {
            pause();
        }
        if (thrown_ != nullptr) {  // no lock needed: set before `done_` counts the chunk
            std::rethrow_exception(std::exchange(thrown_, nullptr));
        }
    }

   private:
    // Computes chunks of a job until the schedule returns NO_CHUNK. A thread claims the chunks of
    // its run in order, so that a prefetch at the end of one chunk hits the beginning of the next.
    // A worker that arrives after the job has finished must not call this job's function for a
    // chunk of the next job. It cannot claim one, because the job number in the ticket differs.
    void take_chunks(uint32_t number, int thread) {
        const auto run = run_.load(std::memory_order_acquire);
        const auto body = body_.load(std::memory_order_acquire);
        const auto next = next_.load(std::memory_order_acquire);
        const SharedJob job = {number, chunks_.load(std::memory_order_acquire), threads_};
        int64_t chunk;
        while ((chunk = next(runs_.get(), job, thread)) != NO_CHUNK) {
            try {
                run(body, chunk);
            } catch (...) {
                store_exception(std::current_exception());
            }
            done_.fetch_add(1, std::memory_order_release);
        }
    }

    void store_exception(std::exception_ptr thrown) {
        std::lock_guard lock(thrown_mutex_);
        if (thrown_ == nullptr) {
            thrown_ = std::move(thrown);
        }
    }

    void work(int thread) {
        uint32_t seen = 0;
        while (true) {
            const auto deadline = std::chrono::steady_clock::now() + SPIN;
            uint32_t job = job_.load(std::memory_order_acquire);
            for (int i = 0; job == seen; i++) {
                pause();
                if (i % 64 == 63 && std::chrono::steady_clock::now() > deadline) {
                    job_.wait(seen, std::memory_order_acquire);
                }
                job = job_.load(std::memory_order_acquire);
            }
            seen = job;
            take_chunks(job, thread);
        }
    }

    const int threads_;
    const std::unique_ptr<ChunkRange<std::atomic<uint64_t>>[]> runs_;
    std::mutex job_mutex_;
    std::mutex thrown_mutex_;
    std::exception_ptr thrown_;  // first exception of this job
    std::atomic<detail::Chunk> run_{nullptr};
    std::atomic<const void*> body_{nullptr};
    std::atomic<int64_t> chunks_{0};
    std::atomic<NextChunk> next_{nullptr};
    alignas(64) std::atomic<int64_t> done_{0};
    alignas(64) std::atomic<uint32_t> job_{0};
};

}  // namespace

int num_threads() {
    static const int count = configured_threads();
    return count;
}

void detail::run_parallel(int64_t chunks, Chunk run, const void* body) {
    if (chunks <= 1 || num_threads() == 1) {
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            run(body, chunk);
        }
        return;
    }
    // Never destroyed: at exit, workers may still be waiting in it.
    static Pool* pool = new Pool(num_threads());
    pool->run(chunks, run, body);
}

}  // namespace tiny_llm_ext
