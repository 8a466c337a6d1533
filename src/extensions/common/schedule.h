// Scheduling of a job's chunks over threads.
//
// A job's chunks are divided into contiguous runs, one per thread. Each run has a ticket: the job
// number and the run's first unclaimed chunk.
//
//     ticket = job · 2³² + chunk
//
// Static schedule: each thread computes the chunks of its run. Dynamic schedule: a thread that has
// finished its run steals chunks of other runs, so a thread that woke late or was preempted does
// not delay the job.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tiny_llm_ext {

constexpr int64_t NO_CHUNK = -1;
constexpr uint64_t CHUNK_BITS = 0xffffffff;  // a ticket's lower half: the chunk

/// One call of parallel_for.
struct SharedJob {
    uint32_t number;  // consecutive over all jobs
    int64_t chunks;
    int threads;

    /// The first chunk of a thread's run, which ends where the next thread's begins.
    int64_t begin(int thread) const { return chunks * thread / threads; }

    /// The ticket of a run with the given next chunk.
    uint64_t ticket(uint64_t chunk) const { return (uint64_t{number} << 32) | chunk; }
};

/// A thread's run, on a separate cache line to avoid false sharing.
template <typename Ticket>
struct alignas(64) ChunkRange {
    Ticket ticket{0};
};

/// Claims the next chunk for a thread; NO_CHUNK if none is left for it.
using NextChunk = int64_t (*)(ChunkRange<std::atomic<uint64_t>>* runs, const SharedJob& job,
                              int thread);

/// The schedule of parallel_for: dynamic by default, or static if the course's task that implements
/// dynamic is not solved yet.
NextChunk current_schedule();

/// Sets the schedule: "static", "dynamic" or "" for the default. For benchmarks that alternate
/// between the two. Throws std::invalid_argument for an unknown name, and std::runtime_error, which
/// names the course task, if dynamic is not implemented.
void set_schedule(const std::string& name);

/// Runs a job with tickets that are slow to access, to provoke contention. For tests.
///
/// delay_first: delays thread 0's first chunk until all other chunks are done, for at most two
///   seconds.
/// Returns the chunks claimed by a stale worker, which still has the previous job, then those of
/// each thread.
std::vector<std::vector<int64_t>> simulate_schedule(const std::string& name, int threads,
                                                    int64_t chunks, bool delay_first);

}  // namespace tiny_llm_ext
