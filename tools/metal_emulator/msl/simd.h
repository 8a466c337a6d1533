// <metal_simdgroup>: operations that synchronize the lanes of a simdgroup. Each lane stores its
// value in the exchange table; the last lane to arrive computes all results, from lane 0 upwards.
#pragma once

namespace msl {

template <class T>
concept shareable =
    (floating<element_t<T>> || std::integral<element_t<T>>) && !std::same_as<element_t<T>, bool> &&
    !std::same_as<element_t<T>, bfloat> && sizeof(element_t<T>) <= 4;

template <class T>
MSL_INLINE T& input(uint lane) {
    return *(T*)msl_exchange()->input[lane];
}
template <class T>
MSL_INLINE T& result(uint lane) {
    return *(T*)msl_exchange()->result[lane];
}
MSL_INLINE bool takes_part(uint lanes, uint lane) { return lanes >> lane & 1; }

template <class Out, class In, class Compute>
MSL_UNSEEN __attribute__((noinline)) Out meet(In value, Meeting meeting, const char* name,
                                              Site site, Compute compute) {
    static_assert(sizeof(In) <= 64 && sizeof(Out) <= 64);
    input<In>(msl_lane()) = value;
    if (uint lanes = msl_meet(meeting, name, site)) {
        compute(lanes);
    }
    return result<Out>(msl_lane());
}

template <class T, class Combine>
MSL_INLINE T reduce(T value, const char* name, Site site, Combine combine) {
    auto compute = [=] MSL_UNSEEN(uint lanes) {
        T total{};
        bool first = true;
        for (uint lane = 0; lane < LANES; ++lane) {
            if (takes_part(lanes, lane)) {
                total = first ? input<T>(lane) : combine(total, input<T>(lane));
                first = false;
            }
        }
        for (uint lane = 0; lane < LANES; ++lane) {
            result<T>(lane) = total;
        }
    };
    return meet<T>(value, Meeting::REDUCTION, name, site, compute);
}

#ifdef MSL_LOOSE
// A sum or product in random order: repeatedly combines two random operands.
template <class T, class Combine>
MSL_INLINE T reduce_in_any_order(T value, const char* name, Site site, Combine combine) {
    auto compute = [=] MSL_UNSEEN(uint lanes) {
        T left[LANES];
        uint count = 0;
        for (uint lane = 0; lane < LANES; ++lane) {
            if (takes_part(lanes, lane)) {
                left[count++] = input<T>(lane);
            }
        }
        while (count > 1) {
            const uint first = msl_choice(2 * count) % count;
            const T x = left[first];
            left[first] = left[--count];
            const uint second = msl_choice(2 * count + 1) % count;
            left[second] = combine(left[second], x);
        }
        for (uint lane = 0; lane < LANES; ++lane) {
            result<T>(lane) = left[0];
        }
    };
    return meet<T>(value, Meeting::REDUCTION, name, site, compute);
}
#else
template <class T, class Combine>
MSL_INLINE T reduce_in_any_order(T value, const char* name, Site site, Combine combine) {
    return reduce(value, name, site, combine);
}
#endif

template <class T, class Combine>
MSL_INLINE T scan(T value, T identity, bool inclusive, const char* name, Site site,
                  Combine combine) {
    auto compute = [=] MSL_UNSEEN(uint lanes) {
        T total = identity;
        for (uint lane = 0; lane < LANES; ++lane) {
            if (takes_part(lanes, lane)) {
                T next = combine(total, input<T>(lane));
                result<T>(lane) = inclusive ? next : total;
                total = next;
            }
        }
    };
    return meet<T>(value, Meeting::REDUCTION, name, site, compute);
}

template <class T>
struct Shuffled {
    T value, otherwise;
    int from;
};

// Each lane reads the value of lane `from`, or `otherwise` if `from` is outside the simdgroup.
template <class T>
MSL_INLINE T shuffle(T value, int from, T otherwise, const char* name, Site site) {
    auto compute = [=] MSL_UNSEEN(uint lanes) {
        for (uint lane = 0; lane < LANES; ++lane) {
            if (!takes_part(lanes, lane)) {
                continue;
            }
            Shuffled<T>& mine = input<Shuffled<T>>(lane);
            if (mine.from < 0 || mine.from >= (int)LANES) {
                result<T>(lane) = mine.otherwise;
            } else if (takes_part(lanes, mine.from)) {
                result<T>(lane) = input<Shuffled<T>>(mine.from).value;
            } else {
                msl_fail("inactive-lane", name, site);
            }
        }
    };
    return meet<T>(Shuffled<T>{value, otherwise, from}, Meeting::SHUFFLE, name, site, compute);
}

// Like `shuffle`, but for `from` outside the simdgroup, reads the `fill` of lane `from` mod 32.
template <class T>
MSL_INLINE T shuffle_and_fill(T value, T fill, int from, const char* name, Site site) {
    auto compute = [=] MSL_UNSEEN(uint lanes) {
        for (uint lane = 0; lane < LANES; ++lane) {
            if (!takes_part(lanes, lane)) {
                continue;
            }
            int source = input<Shuffled<T>>(lane).from;
            Shuffled<T>& other = input<Shuffled<T>>(source & (LANES - 1));
            if (!takes_part(lanes, source & (LANES - 1))) {
                msl_fail("inactive-lane", name, site);
            }
            result<T>(lane) = source < 0 || source >= (int)LANES ? other.otherwise : other.value;
        }
    };
    return meet<T>(Shuffled<T>{value, fill, from}, Meeting::SHUFFLE, name, site, compute);
}

}  // namespace msl

namespace metal {
using msl::Site;

#define MSL_REDUCTION_BY(REDUCE, NAME, CONSTRAINT, VALUE)              \
    template <msl::shareable T>                                        \
        requires(CONSTRAINT)                                           \
    MSL_INLINE T NAME(T value, Site site = Site::here()) {             \
        auto combine = [] MSL_UNSEEN(T x, T y) { return (T)(VALUE); }; \
        return msl::REDUCE(value, #NAME, site, combine);               \
    }
#define MSL_REDUCTION(NAME, CONSTRAINT, VALUE) MSL_REDUCTION_BY(reduce, NAME, CONSTRAINT, VALUE)
#define MSL_ANY_ELEMENT true
#define MSL_INTEGER_ELEMENT std::is_integral_v<msl::element_t<T>>
MSL_REDUCTION_BY(reduce_in_any_order, simd_sum, MSL_ANY_ELEMENT, x + y)
MSL_REDUCTION_BY(reduce_in_any_order, simd_product, MSL_ANY_ELEMENT, x* y)
MSL_REDUCTION(simd_max, MSL_ANY_ELEMENT, max(x, y))
MSL_REDUCTION(simd_min, MSL_ANY_ELEMENT, min(x, y))
MSL_REDUCTION(simd_and, MSL_INTEGER_ELEMENT, x& y)
MSL_REDUCTION(simd_or, MSL_INTEGER_ELEMENT, x | y)
MSL_REDUCTION(simd_xor, MSL_INTEGER_ELEMENT, x ^ y)
MSL_REDUCTION(simd_broadcast_first, MSL_ANY_ELEMENT, ((void)y, x))

#define MSL_SCAN(NAME, IDENTITY, INCLUSIVE, VALUE)                               \
    template <msl::shareable T>                                                  \
    MSL_INLINE T NAME(T value, Site site = Site::here()) {                       \
        auto combine = [] MSL_UNSEEN(T x, T y) { return (T)(VALUE); };           \
        return msl::scan(value, (T)(IDENTITY), INCLUSIVE, #NAME, site, combine); \
    }
MSL_SCAN(simd_prefix_inclusive_sum, 0, true, x + y)
MSL_SCAN(simd_prefix_exclusive_sum, 0, false, x + y)
MSL_SCAN(simd_prefix_inclusive_product, 1, true, x* y)
MSL_SCAN(simd_prefix_exclusive_product, 1, false, x* y)

#define MSL_SHUFFLE(NAME, FROM)                                       \
    template <msl::shareable T>                                       \
    MSL_INLINE T NAME(T value, ushort by, Site site = Site::here()) { \
        const int lane = msl_lane();                                  \
        (void)lane;                                                   \
        return msl::shuffle(value, FROM, value, #NAME, site);         \
    }
MSL_SHUFFLE(simd_shuffle, by & 31)
MSL_SHUFFLE(simd_broadcast, by & 31)
MSL_SHUFFLE(simd_shuffle_xor, lane ^ by)
MSL_SHUFFLE(simd_shuffle_down, lane + by)
MSL_SHUFFLE(simd_shuffle_up, lane - by)
MSL_SHUFFLE(simd_shuffle_rotate_down, (lane + by) & 31)
MSL_SHUFFLE(simd_shuffle_rotate_up, (lane - by) & 31)
MSL_SHUFFLE(quad_shuffle_xor, lane ^ (by & 3))
MSL_SHUFFLE(quad_shuffle, (lane & ~3) + (by & 3))
MSL_SHUFFLE(quad_broadcast, (lane & ~3) + (by & 3))

template <msl::shareable T>
MSL_INLINE T simd_shuffle_and_fill_down(T value, T fill, ushort by, Site site = Site::here()) {
    return msl::shuffle_and_fill(value, fill, msl_lane() + by, "simd_shuffle_and_fill_down", site);
}
template <msl::shareable T>
MSL_INLINE T simd_shuffle_and_fill_up(T value, T fill, ushort by, Site site = Site::here()) {
    int from = (int)msl_lane() - by;
    return msl::shuffle_and_fill(value, fill, from, "simd_shuffle_and_fill_up", site);
}

#define MSL_QUAD_REDUCTION(NAME, VALUE)                \
    template <msl::shareable T>                        \
    MSL_INLINE T NAME(T x, Site site = Site::here()) { \
        T y = quad_shuffle_xor(x, 1, site);            \
        x = (T)(VALUE);                                \
        y = quad_shuffle_xor(x, 2, site);              \
        return (T)(VALUE);                             \
    }
MSL_QUAD_REDUCTION(quad_sum, x + y)
MSL_QUAD_REDUCTION(quad_max, max(x, y))
MSL_QUAD_REDUCTION(quad_min, min(x, y))

struct simd_vote {
    ulong lanes;
    explicit operator ulong() const { return lanes; }
    bool any() const { return lanes != 0; }
    bool all() const { return lanes == 0xffffffff; }
};
MSL_INLINE simd_vote simd_ballot(bool vote, Site site = Site::here()) {
    uint mine = vote ? 1u << msl_lane() : 0;
    return {msl::reduce(mine, "simd_ballot", site, [](uint x, uint y) { return x | y; })};
}
MSL_INLINE bool simd_any(bool vote, Site site = Site::here()) {
    return msl::reduce((int)vote, "simd_any", site, [](int x, int y) { return x | y; });
}
MSL_INLINE bool simd_all(bool vote, Site site = Site::here()) {
    return msl::reduce((int)vote, "simd_all", site, [](int x, int y) { return x & y; });
}
MSL_INLINE bool simd_is_first(Site site = Site::here()) {
    uint first = msl::reduce(msl_lane(), "simd_is_first", site, [](uint x, uint) { return x; });
    return first == msl_lane();
}

enum class mem_flags : uint {
    mem_none = 0,
    mem_device = 1,
    mem_threadgroup = 2,
    mem_texture = 4,
    mem_threadgroup_imageblock = 8,
    mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags x, mem_flags y) { return (mem_flags)((uint)x | (uint)y); }

MSL_INLINE void threadgroup_barrier(mem_flags flags, Site site = Site::here()) {
    msl_threadgroup_barrier((uint)flags, site);
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, Site site = Site::here()) {
    msl_simdgroup_barrier((uint)flags, site);
}

}  // namespace metal
