// The pool: workers that spin for a while after each job and then sleep.
//
// A decode step is a few hundred kernels of tens of microseconds. Waking a sleeping thread takes
// about 45 µs on a virtual machine, so a worker must not sleep between them; and it must not spin
// for ever, or an idle engine would burn its cores.
#include "common/threads.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

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
        throw std::invalid_argument("TINY_LLM_NUM_THREADS is \"" + std::string(text) +
                                    "\"; it must be a whole number from 1 to 1024.");
    }
    return static_cast<int>(count);
}

class Pool {
   public:
    explicit Pool(int threads)
        : threads_(threads), segments_(std::make_unique<Segment[]>(threads)) {
        for (int thread = 1; thread < threads; thread++) {
            std::thread([this, thread] { work(thread); }).detach();
        }
    }

    void run(int64_t chunks, detail::Chunk run, const void* body) {
        std::lock_guard lock(one_job_at_a_time_);
        const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
        // Closed first: a late worker that reads any of what follows finds no ticket of its job.
        for (int i = 0; i < threads_; i++) {
            segments_[i].ticket.exchange((uint64_t{job} << 32) | CLOSED, std::memory_order_acq_rel);
        }
        run_.store(run, std::memory_order_release);
        body_.store(body, std::memory_order_release);
        chunks_.store(chunks, std::memory_order_release);
        done_.store(0, std::memory_order_relaxed);
        for (int i = 0; i < threads_; i++) {
            segments_[i].ticket.store(
                (uint64_t{job} << 32) | static_cast<uint64_t>(begin(i, chunks)),
                std::memory_order_release);
        }
        job_.store(job, std::memory_order_release);
        job_.notify_all();
        take_chunks(job, 0);
        while (done_.load(std::memory_order_acquire) < chunks) {
            pause();
        }
    }

   private:
    static constexpr uint64_t CLOSED = 0xffffffff;  // more than any job has chunks

    // A part of a job's chunks, neighbours of each other. A thread takes them in order, so that
    // what it asks for ahead of time, at the end of one chunk, is the beginning of its next.
    struct alignas(64) Segment {
        std::atomic<uint64_t> ticket{0};  // the job's number above the next chunk's
    };

    // The first chunk of a thread's segment.
    int64_t begin(int thread, int64_t chunks) const { return chunks * thread / threads_; }

    // Claims and runs chunks of a job until none is left: those of this thread's segment, and then
    // those that other threads have not got to. A worker that comes late to a finished job cannot
    // take a chunk of the next one with the old job's function: the ticket has another number.
    void take_chunks(uint32_t job, int thread) {
        const auto run = run_.load(std::memory_order_acquire);
        const auto body = body_.load(std::memory_order_acquire);
        const auto chunks = chunks_.load(std::memory_order_acquire);
        for (int i = 0; i < threads_; i++) {
            const int owner = (thread + i) % threads_;
            const int64_t end = begin(owner + 1, chunks);
            auto& next = segments_[owner].ticket;
            uint64_t ticket = next.load(std::memory_order_acquire);
            while (ticket >> 32 == job && static_cast<int64_t>(ticket & CLOSED) < end) {
                if (next.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
                    run(body, static_cast<int64_t>(ticket & CLOSED));
                    done_.fetch_add(1, std::memory_order_release);
                    ticket = next.load(std::memory_order_acquire);
                }
            }
        }
    }

    void work(int thread) {
        uint32_t seen = 0;
        while (true) {
            const auto give_up = std::chrono::steady_clock::now() + SPIN;
            uint32_t job = job_.load(std::memory_order_acquire);
            for (int i = 0; job == seen; i++) {
                pause();
                if (i % 64 == 63 && std::chrono::steady_clock::now() > give_up) {
                    job_.wait(seen, std::memory_order_acquire);
                }
                job = job_.load(std::memory_order_acquire);
            }
            seen = job;
            take_chunks(job, thread);
        }
    }

    const int threads_;
    const std::unique_ptr<Segment[]> segments_;
    std::mutex one_job_at_a_time_;
    std::atomic<detail::Chunk> run_{nullptr};
    std::atomic<const void*> body_{nullptr};
    std::atomic<int64_t> chunks_{0};
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
    // Never destroyed: at exit its workers may still be asleep in it.
    static Pool* pool = new Pool(num_threads());
    pool->run(chunks, run, body);
}

}  // namespace tiny_llm_ext
