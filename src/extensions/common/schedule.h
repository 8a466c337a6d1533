// Which chunk of a job a thread computes next.
//
// A job's chunks are divided into runs of neighbours, one for each thread. A run has a ticket: the
// number of the job, and the first chunk of the run that no thread has yet.
//
//     ticket = job · 2³² + chunk
//
// In equal parts, each thread computes its own run. By claims, a thread that has finished its run
// helps the others with theirs: one that was slow to wake, or lost its core to another program,
// then no longer keeps the others waiting.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tiny_llm_ext {

constexpr int64_t NO_CHUNK = -1;
constexpr uint64_t CHUNK_BITS = 0xffffffff;  // the bits of a ticket that are the chunk

/// One call of parallel_for.
struct SharedJob {
    uint32_t number;  // of all jobs: the next one has the next number
    int64_t chunks;
    int threads;

    /// The first chunk of a thread's run, which ends where the next thread's begins.
    int64_t begin(int thread) const { return chunks * thread / threads; }

    /// The ticket of a run whose next chunk is the given one.
    uint64_t ticket(uint64_t chunk) const { return (uint64_t{number} << 32) | chunk; }
};

/// A thread's run. Each is on a cache line of its own: threads do not wait for each other's.
template <typename Ticket>
struct alignas(64) ChunkRange {
    Ticket ticket{0};
};

/// The next chunk for a thread, or NO_CHUNK if it is done with the job.
using NextChunk = int64_t (*)(ChunkRange<std::atomic<uint64_t>>* runs, const SharedJob& job,
                              int thread);

/// What parallel_for goes by: claims, or as long as a learner has to write them equal parts.
NextChunk current_schedule();

/// Names it: "static" or "dynamic"; "" goes back to the above. For measuring the two in turns.
/// Throws std::invalid_argument for another name, and says which task is to be written.
void set_schedule(const std::string& name);

/// For tests: a job by that schedule, whose tickets are slow, so that threads meet at them.
///
/// held: the first thread keeps its first chunk until all others are done, or two seconds.
/// Returns what a thread got that asked for the job before this one, then each thread's chunks.
std::vector<std::vector<int64_t>> simulate_schedule(const std::string& name, int threads,
                                                    int64_t chunks, bool held);

}  // namespace tiny_llm_ext
