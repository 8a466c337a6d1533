// Schedules, schedule selection, and slow tickets for tests.
#include "common/schedule.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace tiny_llm_ext {

namespace {

/// Claims the next chunk of the thread's run. Static schedule: no other thread claims chunks of
/// this run, so a plain load and store of the ticket suffice.
template <typename Ticket>
int64_t next_static(ChunkRange<Ticket>* runs, const SharedJob& job, int thread) {
    auto& ticket = runs[thread].ticket;
    const uint64_t seen = ticket.load(std::memory_order_acquire);
    const auto chunk = static_cast<int64_t>(seen & CHUNK_BITS);
    if (seen >> 32 != job.number || chunk >= job.begin(thread + 1)) {
        return NO_CHUNK;
    }
    ticket.store(seen + 1, std::memory_order_release);
    return chunk;
}

/// Claims the next chunk of a run, which must be below `end`. Safe to call from several threads.
///
/// Returns a chunk that no other thread claims, or NO_CHUNK if the run is exhausted or the ticket
/// belongs to another job. Without this check, a thread that slept through a job could claim a
/// chunk of the next job.
template <typename Ticket>
int64_t claim(Ticket& ticket, uint32_t job, int64_t end) {
    // [task 4.5.1 claim]
    uint64_t seen = ticket.load(std::memory_order_acquire);
    while (seen >> 32 == job && static_cast<int64_t>(seen & CHUNK_BITS) < end) {
        if (ticket.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
            return static_cast<int64_t>(seen & CHUNK_BITS);
        }
    }
    return NO_CHUNK;
    // [/task 4.5.1 claim]
}

/// Claims the next chunk of the thread's run or, once that is exhausted, of another thread's run.
template <typename Ticket>
int64_t next_dynamic(ChunkRange<Ticket>* runs, const SharedJob& job, int thread) {
    // [task 4.5.1 next]
    for (int i = 0; i < job.threads; i++) {
        const int owner = (thread + i) % job.threads;
        const int64_t chunk = claim(runs[owner].ticket, job.number, job.begin(owner + 1));
        if (chunk != NO_CHUNK) {
            return chunk;
        }
    }
    return NO_CHUNK;
    // [/task 4.5.1 next]
}

NextChunk dynamic_schedule() {
    // [task 4.5.1 choose]
    return next_dynamic;
    // [/task 4.5.1 choose]
}

NextChunk default_schedule() {
    try {
        return dynamic_schedule();
    } catch (const std::runtime_error&) {  // the course's task is not solved yet
        return next_static;
    }
}

std::atomic<NextChunk> chosen{nullptr};

void check_name(const std::string& name) {
    if (name != "static" && name != "dynamic") {
        throw std::invalid_argument("schedule must be static or dynamic, got \"" + name + "\".");
    }
}

// Atomic integer that sleeps before and after its accesses, so that other threads' accesses
// interleave.
class SlowTicket {
   public:
    SlowTicket(uint64_t value) : value_(value) {}

    uint64_t load(std::memory_order = std::memory_order_seq_cst) const {
        wait();
        const uint64_t value = value_.load();
        wait();
        return value;
    }
    void store(uint64_t value, std::memory_order = std::memory_order_seq_cst) {
        wait();
        value_.store(value);
    }
    uint64_t fetch_add(uint64_t more, std::memory_order = std::memory_order_seq_cst) {
        wait();
        return value_.fetch_add(more);
    }
    bool compare_exchange_weak(uint64_t& expected, uint64_t value,
                               std::memory_order = std::memory_order_seq_cst) {
        wait();
        return value_.compare_exchange_strong(expected, value);
    }
    bool compare_exchange_strong(uint64_t& expected, uint64_t value,
                                 std::memory_order = std::memory_order_seq_cst) {
        return compare_exchange_weak(expected, value);
    }

   private:
    static void wait() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

    std::atomic<uint64_t> value_;
};

}  // namespace

NextChunk current_schedule() {
    NextChunk next = chosen.load(std::memory_order_acquire);
    if (next == nullptr) {
        next = default_schedule();
        chosen.store(next, std::memory_order_release);
    }
    return next;
}

void set_schedule(const std::string& name) {
    if (name.empty()) {
        chosen.store(nullptr, std::memory_order_release);
        return;
    }
    check_name(name);
    chosen.store(name == "static" ? static_cast<NextChunk>(next_static) : dynamic_schedule(),
                 std::memory_order_release);
}

std::vector<std::vector<int64_t>> simulate_schedule(const std::string& name, int threads,
                                                    int64_t chunks, bool delay_first) {
    check_name(name);
    const auto next = name == "static" ? next_static<SlowTicket> : next_dynamic<SlowTicket>;
    const SharedJob job = {7, chunks, threads};
    std::vector<ChunkRange<SlowTicket>> runs(threads);
    for (int i = 0; i < threads; i++) {
        runs[i].ticket.store(job.ticket(job.begin(i)));
    }
    std::vector<std::vector<int64_t>> found(threads + 1);
    const SharedJob before = {job.number - 1, chunks, threads};
    if (const int64_t chunk = next(runs.data(), before, 0); chunk != NO_CHUNK) {
        found[0].push_back(chunk);
    }
    std::atomic<int64_t> done{0};
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&](int thread) {
        try {
            auto& mine = found[thread + 1];
            // The bound stops an incorrect schedule that never returns NO_CHUNK: a thread can claim
            // each chunk at most once.
            while (static_cast<int64_t>(mine.size()) <= chunks) {
                const int64_t chunk = next(runs.data(), job, thread);
                if (chunk == NO_CHUNK) {
                    return;
                }
                mine.push_back(chunk);
                const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
                while (delay_first && thread == 0 && mine.size() == 1 && done.load() < chunks - 1 &&
                       std::chrono::steady_clock::now() < end) {
                    std::this_thread::sleep_for(std::chrono::microseconds(50));
                }
                done.fetch_add(1);
            }
        } catch (...) {
            const std::lock_guard lock(mutex);
            error = std::current_exception();
        }
    };
    std::vector<std::thread> running;
    for (int thread = 0; thread < threads; thread++) {
        running.emplace_back(work, thread);
    }
    for (auto& thread : running) {
        thread.join();
    }
    if (error) {
        std::rethrow_exception(error);
    }
    return found;
}

}  // namespace tiny_llm_ext
