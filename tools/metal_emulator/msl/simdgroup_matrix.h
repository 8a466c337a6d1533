// <metal_simdgroup_matrix>: an 8×8 matrix distributed over the 32 lanes of a simdgroup. Each lane
// holds two adjacent elements of a row, in the layout of Apple's GPUs, on which MLX's kernels rely.
#pragma once

namespace metal {

template <class T, int ROWS = 8, int COLUMNS = 8>
struct simdgroup_matrix {
    static_assert(ROWS == 8 && COLUMNS == 8, "a simdgroup_matrix has 8 rows and 8 columns");
    static_assert(msl::floating<T>, "a simdgroup_matrix has elements of float, half or bfloat");

    vec<T, 2> elements;

    simdgroup_matrix() {}
    // A diagonal matrix.
    explicit simdgroup_matrix(T diagonal) {
        const int r = row(msl_lane()), c = column(msl_lane());
        elements[0] = r == c ? diagonal : (T)0.0f;
        elements[1] = r == c + 1 ? diagonal : (T)0.0f;
    }
    vec<T, 2>& thread_elements() { return elements; }
    const vec<T, 2>& thread_elements() const { return elements; }

    // Lane 16a + 8b + 2c + d holds row 4a + c, columns 4b + 2d and 4b + 2d + 1.
    MSL_UNSEEN static constexpr int row(uint lane) { return (lane >> 4) * 4 + (lane >> 1 & 3); }
    MSL_UNSEEN static constexpr int column(uint lane) {
        return (lane >> 3 & 1) * 4 + (lane & 1) * 2;
    }
};

typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;

template <class T, int ROWS = 8, int COLUMNS = 8>
MSL_INLINE simdgroup_matrix<T, ROWS, COLUMNS> make_filled_simdgroup_matrix(T value) {
    simdgroup_matrix<T, ROWS, COLUMNS> matrix;
    matrix.elements[0] = matrix.elements[1] = value;
    return matrix;
}

}  // namespace metal

namespace msl {

// Address of the current lane's element i of a matrix in memory. Its computation is not counted,
// because a GPU does it once per loop or in the load instruction.
template <class P>
MSL_UNSEEN __attribute__((noinline)) P matrix_element(P memory, ulong i, ulong elements_per_row,
                                                      ulong2 origin, bool transpose) {
    const ulong r = metal::simdgroup_matrix<float>::row(msl_lane());
    const ulong c = metal::simdgroup_matrix<float>::column(msl_lane());
    const ulong y = transpose ? c + i : r, x = transpose ? r : c + i;
    return memory + (origin.y + y) * elements_per_row + origin.x + x;
}

}  // namespace msl

namespace metal {

// `origin` is (column, row) of the first element; `transpose` swaps rows and columns in memory.
#define MSL_MATRIX_MEMORY(SPACE)                                                              \
    template <class T>                                                                        \
    MSL_INLINE void simdgroup_load(thread simdgroup_matrix<T>& matrix, const SPACE T* source, \
                                   ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0},  \
                                   bool transpose = false, Site site = Site::here()) {        \
        msl_meet(msl::Meeting::MATRIX, "simdgroup_load", site);                               \
        for (ulong i = 0; i < 2; ++i) {                                                       \
            matrix.elements[i] =                                                              \
                *msl::matrix_element(source, i, elements_per_row, origin, transpose);         \
        }                                                                                     \
    }                                                                                         \
    template <class T>                                                                        \
    MSL_INLINE void simdgroup_store(simdgroup_matrix<T> matrix, SPACE T* destination,         \
                                    ulong elements_per_row = 8, ulong2 origin = ulong2{0, 0}, \
                                    bool transpose = false, Site site = Site::here()) {       \
        msl_meet(msl::Meeting::MATRIX, "simdgroup_store", site);                              \
        for (ulong i = 0; i < 2; ++i) {                                                       \
            *msl::matrix_element(destination, i, elements_per_row, origin, transpose) =       \
                matrix.elements[i];                                                           \
        }                                                                                     \
    }
MSL_MATRIX_MEMORY(device)
MSL_MATRIX_MEMORY(threadgroup)
#undef MSL_MATRIX_MEMORY

}  // namespace metal

namespace msl {

struct Fragments {
    float a[2], b[2], c[2];
};
struct Fragment {
    float elements[2];
};

// Order in which a matrix multiply-accumulate adds its terms, which is undocumented on GPUs.
struct Summands {
    int k[8];
    bool c_first;
};
MSL_UNSEEN inline Summands order_of_summands() {
    Summands order{{0, 1, 2, 3, 4, 5, 6, 7}, true};
#ifdef MSL_LOOSE
    for (int i = 7; i > 0; --i) {
        std::swap(order.k[i], order.k[msl_choice(100 + i) % (i + 1)]);
    }
    order.c_first = msl_choice(100) & 1;
#endif
    return order;
}

// d = a · b + c in float.
MSL_UNSEEN inline void multiply_matrices() {
    typedef metal::simdgroup_matrix<float> Layout;
    float a[8][8], b[8][8], c[8][8], d[8][8];
    for (uint lane = 0; lane < LANES; ++lane) {
        const Fragments& mine = input<Fragments>(lane);
        for (int i = 0; i < 2; ++i) {
            const int row = Layout::row(lane), column = Layout::column(lane) + i;
            a[row][column] = mine.a[i];
            b[row][column] = mine.b[i];
            c[row][column] = mine.c[i];
        }
    }
    const Summands order = order_of_summands();
    for (int row = 0; row < 8; ++row) {
        for (int column = 0; column < 8; ++column) {
            float sum = order.c_first ? c[row][column] : 0.0f;
            for (int k : order.k) {
                sum += a[row][k] * b[k][column];
            }
            d[row][column] = order.c_first ? sum : sum + c[row][column];
        }
    }
    for (uint lane = 0; lane < LANES; ++lane) {
        for (int i = 0; i < 2; ++i) {
            result<Fragment>(lane).elements[i] = d[Layout::row(lane)][Layout::column(lane) + i];
        }
    }
    msl_matrix_multiply_accumulated();
}

}  // namespace msl

namespace metal {

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(thread simdgroup_matrix<D>& d, simdgroup_matrix<A> a,
                                              simdgroup_matrix<B> b, simdgroup_matrix<C> c,
                                              Site site = Site::here()) {
    const msl::Fragments mine{{(float)a.elements[0], (float)a.elements[1]},
                              {(float)b.elements[0], (float)b.elements[1]},
                              {(float)c.elements[0], (float)c.elements[1]}};
    auto compute = [] MSL_UNSEEN(uint) { msl::multiply_matrices(); };
    const char* name = "simdgroup_multiply_accumulate";
    auto product = msl::meet<msl::Fragment>(mine, msl::Meeting::MATRIX, name, site, compute);
    d.elements[0] = (D)product.elements[0];
    d.elements[1] = (D)product.elements[1];
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(thread simdgroup_matrix<D>& d, simdgroup_matrix<A> a,
                                   simdgroup_matrix<B> b, Site site = Site::here()) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D>((D)0.0f), site);
}

}  // namespace metal
