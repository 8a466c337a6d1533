// Measures this machine's limits: the memory read bandwidth of all threads, and the peak throughput
// of the arithmetic instructions that kernels use.
//
//     probe THREADS SECONDS BYTES…
//
// Prints one line of JSON. A quantity is 0 if this build lacks its instructions. Benchmarks compile
// this file for the machine they run on (roofline.py).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

volatile float sink;  // consumes results, so that the compiler cannot eliminate the computation

/// Total work per second of all threads. The threads start together, and each repeats
/// `work(thread)`, which returns the amount of work done, for `seconds`.
double rate(int threads, double seconds, const std::function<double(int)>& work) {
    std::atomic<int> waiting{threads};
    std::vector<double> rates(threads);
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) {
        pool.emplace_back([&, t] {
            work(t);  // warm-up: wakes the core and touches its memory
            waiting.fetch_sub(1);
            while (waiting.load() > 0) {
                std::this_thread::yield();
            }
            const auto start = Clock::now();
            double done = 0;
            do {
                done += work(t);
            } while (seconds_since(start) < seconds);
            rates[t] = done / seconds_since(start);
        });
    }
    double sum = 0;
    for (int t = 0; t < threads; ++t) {
        pool[t].join();
        sum += rates[t];
    }
    return sum;
}

typedef int64_t Line __attribute__((vector_size(64)));  // a cache line, read with 1, 2 or 4 loads

/// Reads `lines` cache lines, with software prefetching if FETCH; returns the number of bytes read.
template <bool FETCH>
double read_lines(const Line* line, size_t lines) {
    Line sums[8] = {};
    for (size_t i = 0; i + 8 <= lines; i += 8) {
        if (FETCH) {
            __builtin_prefetch(line + i + 32);
            __builtin_prefetch(line + i + 36);
        }
        for (int j = 0; j < 8; ++j) {
            sums[j] ^= line[i + j];
        }
    }
    for (int j = 1; j < 8; ++j) {
        sums[0] ^= sums[j];
    }
    sink = static_cast<float>(sums[0][0]);
    return static_cast<double>(lines / 8 * 8 * sizeof(Line));
}

/// Bytes per second when all threads read their shares of a buffer of `bytes`: the faster of
/// reading with and without prefetching.
double read_rate(int threads, double seconds, size_t bytes) {
    const size_t alignment = size_t{2} << 20;
    bytes = bytes / alignment * alignment;
    auto* buffer = static_cast<char*>(std::aligned_alloc(alignment, bytes));
    if (buffer == nullptr) {
        return 0;
    }
#if defined(__linux__)
    madvise(buffer, bytes, MADV_HUGEPAGE);
#endif
    std::memset(buffer, 1, bytes);
    const size_t lines = bytes / sizeof(Line) / threads;
    double result = 0;
    for (const auto read : {read_lines<true>, read_lines<false>}) {
        result =
            std::max(result, rate(threads, seconds, [&](int thread) {
                         return read(reinterpret_cast<const Line*>(buffer) + thread * lines, lines);
                     }));
    }
    std::free(buffer);
    return result;
}

// Arithmetic. Several independent sums hide the latency of the instructions. Each sum starts from a
// separate read of `sink`: if the compiler knew that the initial values are equal, it could merge
// the sums, and this program would count operations that were not executed.

constexpr int kRounds = 20'000;

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
// Zen 5 issues two bfloat16 dot products per cycle with a latency of six cycles. Twelve sums should
// hide that latency, but reach only 93 % of the peak because of other stalls, so 24 are used.
#if defined(__AVX512F__)
constexpr int kSums = 24;  // in 24 of the 32 vector registers
#elif defined(__aarch64__)
constexpr int kSums = 16;  // in 16 of the 32 vector registers
#else
constexpr int kSums = 12;  // in 12 of the 16 vector registers; two more hold constants
#endif
typedef float Floats __attribute__((vector_size(kVectorBytes)));

/// sum = step(sum). The asm statement keeps the sum in a register; without it, GCC 12 stores some
/// integer sums to memory in every round.
template <typename Vector, typename Step>
inline void update(Vector& sum, const Step& step) {
    Vector next = step(sum);
#if defined(__x86_64__)
    asm("" : "+v"(next));
#elif defined(__aarch64__)
    asm("" : "+w"(next));
#endif
    sum = next;
}

/// Updates all sums kRounds times. With constant indices, the compiler can keep the sums in
/// registers.
template <typename Vector, typename Step, size_t... J>
inline void repeat(Vector (&sums)[kSums], const Step& step, std::index_sequence<J...>) {
    for (int i = 0; i < kRounds; ++i) {
        (update(sums[J], step), ...);
    }
}

/// Runs one arithmetic step per sum and round.
///
/// Args:
///     operations: additions and multiplications per step.
///     step: (sum) → sum.
///
/// Returns the number of operations.
template <typename Vector, typename Step>
inline double run_steps(int operations, const Step& step) {
    Vector sums[kSums] = {};
    for (Vector& sum : sums) {
        const float start = sink;
        std::memcpy(&sum, &start, sizeof start);
    }
    repeat(sums, step, std::make_index_sequence<kSums>());
    for (const Vector& sum : sums) {
        float result;
        std::memcpy(&result, &sum, sizeof result);
        sink = result;
    }
    return static_cast<double>(operations) * kRounds * kSums;
}

double f32_fma(int) {
    const Floats factor = Floats{} + 0.5f, addend = Floats{} + static_cast<float>(sink != 0);
    return run_steps<Floats>(2 * kVectorBytes / 4, [=](Floats sum) {
        return sum * factor + addend;  // the compiler contracts this to one fused multiply-add
    });
}

#if defined(__AVX512BF16__)
double bf16_dot(int) {
    const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(sink)));
    return run_steps<__m512>(2 * 32, [=](__m512 sum) { return _mm512_dpbf16_ps(sum, a, a); });
}
#else
constexpr double (*bf16_dot)(int) = nullptr;
#endif

// 16-bit integer dot products, which kernels use where bfloat16 ones are unavailable. Instructions
// without accumulation multiply by the sum, because the compiler would hoist a product of constants
// out of the loop.
#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__)
double int16_dot(int) {
    const __m512i a = _mm512_set1_epi16(static_cast<short>(sink));
    return run_steps<__m512i>(2 * 32, [=](__m512i sum) { return _mm512_dpwssd_epi32(sum, a, a); });
}
#elif defined(__AVX2__) && !defined(__AVX512BF16__)
double int16_dot(int) {
    const __m256i a = _mm256_set1_epi16(static_cast<short>(sink));
    return run_steps<__m256i>(2 * 16, [=](__m256i sum) {
#if defined(__AVXVNNI__)
        return _mm256_dpwssd_avx_epi32(sum, a, a);
#else
        return _mm256_add_epi32(sum, _mm256_madd_epi16(sum, a));
#endif
    });
}
#elif defined(__ARM_FEATURE_DOTPROD)
double int16_dot(int) {  // high and low bytes of 16-bit integers: two instructions per product
    const int8x16_t a = vdupq_n_s8(static_cast<int8_t>(sink));
    return run_steps<int32x4_t>(16, [=](int32x4_t sum) { return vdotq_s32(sum, a, a); });
}
#elif defined(__aarch64__)
double int16_dot(int) {
    const int16x8_t a = vdupq_n_s16(static_cast<int16_t>(sink));
    return run_steps<int32x4_t>(2 * 4, [=](int32x4_t sum) { return vmlal_high_s16(sum, a, a); });
}
#else
constexpr double (*int16_dot)(int) = nullptr;
#endif

// 8-bit integer dot products, for activations rounded to 8 bits.
#if defined(__AVX512VNNI__)
double int8_dot(int) {
    const __m512i a = _mm512_set1_epi8(static_cast<char>(sink));
    return run_steps<__m512i>(2 * 64, [=](__m512i sum) { return _mm512_dpbusd_epi32(sum, a, a); });
}
#elif defined(__AVX2__)
double int8_dot(int) {
    const __m256i a = _mm256_set1_epi8(static_cast<char>(sink));
    return run_steps<__m256i>(2 * 32, [=](__m256i sum) {
#if defined(__AVXVNNI__)
        return _mm256_dpbusd_avx_epi32(sum, a, a);
#else
        const __m256i pairs = _mm256_maddubs_epi16(sum, a);
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, a));
#endif
    });
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
double int8_dot(int) {  // (2×8) · (8×2)
    const int8x16_t a = vdupq_n_s8(static_cast<int8_t>(sink));
    return run_steps<int32x4_t>(2 * 32, [=](int32x4_t sum) { return vmmlaq_s32(sum, a, a); });
}
#elif defined(__ARM_FEATURE_DOTPROD)
double int8_dot(int) {
    const int8x16_t a = vdupq_n_s8(static_cast<int8_t>(sink));
    return run_steps<int32x4_t>(2 * 16, [=](int32x4_t sum) { return vdotq_s32(sum, a, a); });
}
#else
constexpr double (*int8_dot)(int) = nullptr;
#endif

#if defined(__AMX_INT8__)
/// Requests permission for the tile registers (8 KB of state), which Linux grants per process.
bool amx_allowed() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

double amx_int8(int) {
    // Static, because GCC 12 assumes that the instruction reads only 8 bytes, and would drop the
    // stores to the rest of a local variable.
    static const TileConfig config;
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < kRounds; ++i) {  // four tiles of sums, together a 32×32 result
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
    int32_t result[256];
    _tile_stored(0, result, 64);
    sink = static_cast<float>(result[0]);
    _tile_release();
    return 2.0 * kRounds * 4 * 16 * 16 * 64;
}
#else
bool amx_allowed() { return false; }
constexpr double (*amx_int8)(int) = nullptr;
#endif

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        std::fprintf(stderr, "usage: probe THREADS SECONDS BYTES...\n");
        return 2;
    }
    const int threads = std::max(1, std::atoi(argv[1]));
    const double seconds = std::atof(argv[2]);
    const auto flops = [&](const std::function<double(int)>& work) {
        return work ? rate(threads, seconds, work) : 0.0;
    };
    std::printf("{\"read_bytes_per_s\": {");
    for (int i = 3; i < argc; ++i) {
        const double read = read_rate(threads, seconds, std::strtoull(argv[i], nullptr, 10));
        std::printf("%s\"%s\": %.6g", i > 3 ? ", " : "", argv[i], read);
    }
    std::printf("}, \"f32_fma\": %.6g", flops(f32_fma));
    std::printf(", \"bf16_dot\": %.6g", flops(bf16_dot));
    std::printf(", \"int16_dot\": %.6g", flops(int16_dot));
    std::printf(", \"int8_dot\": %.6g", flops(int8_dot));
    std::printf(", \"amx_int8\": %.6g}\n", amx_allowed() ? flops(amx_int8) : 0.0);
    return 0;
}
