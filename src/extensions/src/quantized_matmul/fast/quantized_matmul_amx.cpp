// quantized_matmul with AMX: one tdpbsud multiplies 64 activations of up to 16 rows by 64 weights
// of 16 outputs, in integers.
//
// The arithmetic is that of quantized_matmul_fixed_point_simd.cpp: activations rounded to 16-bit
// integers, exact sums over a group, and the same float32 operations after them. A row therefore
// has the same bits in either kernel. A few rows, which would underfill the tiles, are delegated to
// that kernel. AMX multiplies bytes, so byte_planes.h splits each integer into two:
//
//     Σ q·A = 256 · Σ q·high + Σ q·low        |Σ q·A| ≤ 255 · 32640 · 128 < 2³¹
//
// 8-bit activations have no high bytes, so one multiplication suffices instead of two.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AMX_INT8__)

#include "src/quantized_matmul/fast/quantized_matmul_amx_tiles.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

static_assert(PANEL_TILES >= 4);   // a group has at least two calls of `multiply`
constexpr int64_t MAX_BLOCKS = 4;  // maximum row blocks at a time: totals stay in L1

// State of a panel of outputs.
struct AmxPanel {
    const QuantizedMatmulJob* job;
    PlanesLayout layout;
    Units units;
    const char* scratch;  // activations: see PlanesLayout
    int64_t first;        // first output
    int outputs;          // PANEL_OUTPUTS, or fewer at the end
    Floats* scales;       // groups × PANEL_TILES
    Floats* biases;       // groups × PANEL_TILES
    Floats* totals;       // blocks × PANEL_TILES × block_rows; lanes are outputs
};

// Converts the panel's scales or biases to float32: groups × PANEL_OUTPUTS.
void load_by_group(const AmxPanel& panel, const uint16_t* in, Floats* out) {
    const int64_t groups = panel.layout.groups;
    const Format format = panel.job->scale_format;
    for (int tile = 0; tile < PANEL_TILES; tile++) {
        const int o = tile * TILE_SIDE;
        const uint16_t* tile_rows = in + (panel.first + o) * groups;
        for (int64_t g = 0; g < groups && o < panel.outputs; g++) {
            out[g * PANEL_TILES + tile] = (Floats)load_halves(tile_rows + g * TILE_SIDE, format);
        }
    }
}

// Integer sums of one group for two tiles of outputs, the factors that scale them, and the totals
// to which they are added.
struct Accumulators {
    const float* step;     // Factors::step of each row of a block
    const float* sum;      // Factors::sum of each row of a block
    const Floats* scales;  // of two tiles of outputs
    const Floats* biases;
    Floats* totals;  // 2 × block_rows
    // tile of outputs × plane × row × output
    alignas(64) int32_t sums[2][PLANES][TILE_SIDE][TILE_SIDE];
};

// 256 · x, by a shuffle of bytes: while AMX multiplies, a shift would compete with multiply-adds
// for one execution port.
inline Ints times_256(Ints x) {
    const __m128i bytes = _mm_set_epi8(14, 13, 12, -1, 10, 9, 8, -1, 6, 5, 4, -1, 2, 1, 0, -1);
    return (Ints)_mm512_shuffle_epi8((__m512i)x, _mm512_broadcast_i32x4(bytes));
}

// total += (scale · step) · Σ q·A + bias · (step · Σ A), for `count` rows from row `first` on.
template <int ROWS, int PLANES>
__attribute__((always_inline)) inline void add_to_totals(const Accumulators& from, int first,
                                                         int count) {
    const Floats scales[] = {from.scales[0], from.scales[1]};
    const Floats biases[] = {from.biases[0], from.biases[1]};
#pragma GCC unroll 16
    for (int row = first; row < first + count; row++) {
        Floats step = splat(from.step[row]), sum = splat(from.sum[row]);
        keep_in_register(step);
        keep_in_register(sum);
#pragma GCC unroll 2
        for (int tile = 0; tile < 2; tile++) {
            auto integers = load_bits<Ints>(from.sums[tile][0][row]);
            if constexpr (PLANES == 2) {
                integers = times_256(integers) + load_bits<Ints>(from.sums[tile][1][row]);
            }
            const Floats dot = __builtin_convertvector(integers, Floats);
            Floats& total = from.totals[tile * ROWS + row];
            total = fma(biases[tile], sum, fma(scales[tile] * step, dot, total));
        }
    }
}

// Stores the sums that the last call of `multiply` left in registers.
template <int PLANES>
__attribute__((always_inline)) inline void store_sums(Accumulators& to) {
    if constexpr (PLANES == 2) {
        _tile_stored(1, to.sums[0][1], VECTOR);
        _tile_stored(3, to.sums[1][1], VECTOR);
    }
    _tile_stored(2, to.sums[1][0], VECTOR);
}

// Number of multiplications in a call of `multiply`.
constexpr int multiplications(int steps, int planes) { return 2 * planes * steps; }

// Multiplies one group of two tiles of outputs by one block of rows. The group takes STEPS tiles of
// weights per tile of outputs, and as many tiles of activations per plane, `step` bytes apart. A
// group of 32 fills half of a tile.
//
// The sums in registers 1 to 3 are stored by the next call, just before it overwrites them: a store
// that follows its last multiplication closely delays the next ones. Meanwhile, the sums of the
// call before the last (`pending`, or null) are added to totals, a few rows between two
// multiplications: tile and vector units can run in parallel, but the out-of-order window is too
// small to overlap them otherwise.
template <int STEPS, int ROWS, int PLANES>
__attribute__((always_inline)) inline void multiply(const char* activations, int64_t step,
                                                    const char* weights,
                                                    const Accumulators* pending, Accumulators& last,
                                                    Accumulators& out, UnitPrefetcher& prefetcher) {
    constexpr int SLOTS = multiplications(STEPS, PLANES);
    int slot = 0;
    const auto add_few = [&]() __attribute__((always_inline)) {
        const int first = slot * ROWS / SLOTS;
        slot++;
        prefetcher.prefetch_next();
        if (pending) {
            add_to_totals<ROWS, PLANES>(*pending, first, slot * ROWS / SLOTS - first);
        }
    };
#pragma GCC unroll 2
    for (int i = 0; i < STEPS; i++, activations += step, weights += TILE_BYTES) {
        if (i == 0) {
            _tile_zero(0);
        }
        _tile_loadd(4, weights, VECTOR);
        _tile_loadd(6, activations, VECTOR);
        _tile_dpbsud(0, 6, 4);
        add_few();
        if constexpr (PLANES == 2) {
            if (i == 0) {
                _tile_stored(1, last.sums[0][1], VECTOR);
                _tile_zero(1);
            }
            _tile_loadd(7, activations + ROWS * VECTOR, VECTOR);
            _tile_dpbsud(1, 7, 4);
            add_few();
        }
        if (i == 0) {
            _tile_stored(2, last.sums[1][0], VECTOR);
            _tile_zero(2);
        }
        _tile_loadd(5, weights + MAX_STEPS * TILE_BYTES, VECTOR);
        _tile_dpbsud(2, 6, 5);
        add_few();
        if constexpr (PLANES == 2) {
            if (i == 0) {
                _tile_stored(3, last.sums[1][1], VECTOR);
                _tile_zero(3);
            }
            _tile_dpbsud(3, 7, 5);
            add_few();
        }
    }
    _tile_stored(0, out.sums[0][0], VECTOR);
}

// Rounds and stores the totals of blocks of rows, starting at first_block.
void store_totals(const AmxPanel& panel, int64_t first_block, int64_t blocks) {
    const QuantizedMatmulJob& job = *panel.job;
    const PlanesLayout& layout = panel.layout;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = (first_block + block) * layout.block_rows;
        for (int64_t r = 0; r < layout.block_rows && first + r < layout.rows; r++) {
            const int64_t out = (first + r) * job.O + panel.first;
            for (int tile = 0; tile < PANEL_TILES && tile * TILE_SIDE < panel.outputs; tile++) {
                const Floats total =
                    panel.totals[(block * PANEL_TILES + tile) * layout.block_rows + r];
                if (panel.outputs - tile * TILE_SIDE >= TILE_SIDE) {
                    store(job.out, out + tile * TILE_SIDE, job.format, total);
                } else {
                    store(job.out, out + tile * TILE_SIDE, job.format, total,
                          panel.outputs - tile * TILE_SIDE);
                }
            }
        }
    }
}

// Computes the panel's outputs for `blocks` blocks of rows. With `unpacks`, unpacks each unit of
// weights first; `weights` has `stride` elements per unit.
template <int STEPS, int ROWS, int PLANES>
void run_panel(const AmxPanel& panel, int64_t first_block, int64_t blocks, Weights* weights,
               int stride, bool unpacks) {
    const PlanesLayout& layout = panel.layout;
    const Units& units = panel.units;
    const uint32_t* b = panel.job->b + panel.first * layout.row_bytes / 4;
    const auto steps = (const float*)(panel.scratch + layout.steps_offset);
    const auto sums = (const float*)(panel.scratch + layout.sums_offset);
    const int64_t step = layout.vector_stride();
    for (int64_t i = 0; i < blocks * PANEL_TILES * ROWS; i++) {
        panel.totals[i] = Floats{};
    }
    Accumulators accumulators[3];
    Accumulators *pending = &accumulators[0], *last = &accumulators[1], *next = &accumulators[2];
    int64_t calls = 0;
    const int calls_per_unit =
        units.groups * static_cast<int>(blocks) * PANEL_TILES / 2 * multiplications(STEPS, PLANES);
    for (int64_t unit = 0; unit < units.count; unit++, weights += stride) {
        if (unpacks) {
            with_weight_format(*panel.job, [&]<typename WeightFormat>() {
                unpack_unit<WeightFormat>(layout, units, b, unit, panel.outputs, *weights);
            });
        }
        UnitPrefetcher prefetcher;
        if (unpacks) {
            prefetcher = UnitPrefetcher(layout, units, b, unit, calls_per_unit);
        }
        // The groups of a block follow each other, so that its totals stay in the L1 cache.
        const int64_t first_group = unit * units.groups, left = layout.groups - first_group;
        const int groups = left < units.groups ? static_cast<int>(left) : units.groups;
        for (int64_t block = first_block; block < first_block + blocks; block++) {
            const char* block_activations =
                panel.scratch + layout.offset(first_group * layout.group_size, block);
            for (int tile = 0; tile < PANEL_TILES; tile += 2) {
                Floats* totals = panel.totals + ((block - first_block) * PANEL_TILES + tile) * ROWS;
                for (int i = 0; i < groups; i++) {
                    const int64_t group = first_group + i;
                    const int64_t row = (group * layout.blocks + block) * ROWS;
                    const unsigned element = i * layout.group_size;  // of the unit
                    const __m512i* words = weights->words[tile] + element / 4;
                    const char* activations =
                        block_activations + element / VECTOR * step + element % VECTOR;
                    next->step = steps + row;
                    next->sum = sums + row;
                    next->scales = panel.scales + group * PANEL_TILES + tile;
                    next->biases = panel.biases + group * PANEL_TILES + tile;
                    next->totals = totals;
                    multiply<STEPS, ROWS, PLANES>(activations, step, (const char*)words,
                                                  calls++ < 2 ? nullptr : pending, *last, *next,
                                                  prefetcher);
                    Accumulators* const unused = pending;
                    pending = last;
                    last = next;
                    next = unused;
                }
            }
        }
    }
    store_sums<PLANES>(*last);
    add_to_totals<ROWS, PLANES>(*pending, 0, ROWS);
    add_to_totals<ROWS, PLANES>(*last, 0, ROWS);
    store_totals(panel, first_block, blocks);
}

// Whether quantized_matmul_fixed_point is faster. Its tiles have six rows; in groups of 32, AMX
// scales its sums so often that two such tiles are faster, too.
bool are_few(const QuantizedMatmulJob& job) { return job.M <= (job.group_size == 32 ? 12 : 6); }

// Layout with the fewest rows per tile (8 or 16) that fit all rows in one tile if possible, because
// the cost of multiplying tiles is proportional to their rows of activations.
PlanesLayout layout_of(const QuantizedMatmulJob& job) {
    return PlanesLayout(job, job.M <= 8 ? 8 : TILE_SIDE, job.activation_bits == 8 ? 1 : PLANES);
}

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    return are_few(job) ? quantized_matmul_fixed_point.scratch(job) : layout_of(job).bytes;
}

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    if (are_few(job)) {
        quantized_matmul_fixed_point.prepare(job, scratch, first_row, last_row);
        return;
    }
    prepare_rows(job, layout_of(job), static_cast<char*>(scratch), first_row, last_row);
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    if (are_few(job)) {
        quantized_matmul_fixed_point.run(job, scratch, first_output, last_output);
        return;
    }
    const PlanesLayout layout = layout_of(job);
    const Units units(layout);
    const int64_t most = layout.blocks < MAX_BLOCKS ? layout.blocks : MAX_BLOCKS;
    const int64_t floats = (2 * layout.groups + most * layout.block_rows) * PANEL_TILES;
    // All unpacked units are kept if more blocks of rows follow; otherwise, one buffer is reused.
    const bool keeps_weights = layout.blocks > most;
    const int64_t unpacked = keeps_weights ? units.count : 1;
    // A load stalls on an earlier store whose address has the same lowest 12 bits. With malloc's
    // alignment, one in four addresses of the activations made a multiplication of four rows a
    // third slower; with page alignment, none did.
    constexpr int PAGE = 4096;
    auto memory =
        static_cast<char*>(_mm_malloc(unpacked * sizeof(Weights) + floats * sizeof(Floats), PAGE));
    Floats* totals = (Floats*)memory;
    Floats* scales = totals + most * layout.block_rows * PANEL_TILES;
    Floats* biases = scales + layout.groups * PANEL_TILES;
    Weights* weights = (Weights*)(biases + layout.groups * PANEL_TILES);
    const bool two_steps = layout.group_size > VECTOR;
    const auto choose = [&]<int PLANES>() {
        return layout.block_rows == 8
                   ? (two_steps ? run_panel<2, 8, PLANES> : run_panel<1, 8, PLANES>)
                   : (two_steps ? run_panel<2, 16, PLANES> : run_panel<1, 16, PLANES>);
    };
    const auto run_rows =
        layout.planes == 1 ? choose.template operator()<1>() : choose.template operator()<2>();
    const TileRegisters::Shape sums = {layout.block_rows, VECTOR};
    const int bytes = two_steps ? VECTOR : layout.group_size;  // per row of a tile of activations
    const TileRegisters::Shape words = {bytes / 4, VECTOR};
    const TileRegisters::Shape activations = {layout.block_rows, bytes};
    const TileRegisters registers({sums, sums, sums, sums, words, words, activations, activations});
    for (int64_t o = first_output; o < last_output; o += PANEL_OUTPUTS) {
        const int outputs =
            static_cast<int>(last_output - o < PANEL_OUTPUTS ? last_output - o : PANEL_OUTPUTS);
        const AmxPanel panel = {&job,  layout,  units,  static_cast<const char*>(scratch),
                                o,     outputs, scales, biases,
                                totals};
        load_by_group(panel, job.scales, scales);
        if (job.biases != nullptr) {
            load_by_group(panel, job.biases, biases);
        } else {
            for (int64_t i = 0; i < layout.groups * PANEL_TILES; i++) {
                const auto [scale, bias] = symmetric_factors(job, scales[i]);
                scales[i] = scale;
                biases[i] = bias;
            }
        }
        for (int64_t block = 0; block < layout.blocks; block += most) {
            run_rows(panel, block, layout.blocks - block < most ? layout.blocks - block : most,
                     weights, keeps_weights ? 1 : 0, block == 0);
        }
    }
    _mm_free(memory);
}

// Rows whose activations take up to half of an L2 cache of 2 MB, in multiples of 128; at least 128,
// because all weights are read again for the next rows.
int64_t max_rows(const QuantizedMatmulJob& job) {
    constexpr int64_t HALF_OF_L2 = 1 << 20, STEP = 128;
    const int64_t rows = HALF_OF_L2 / (layout_of(job).planes * job.I) / STEP * STEP;
    return rows < STEP ? STEP : rows;
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_tiles = {scratch_bytes, prepare, run,
                                                      /*prepack_rows=*/TILE_SIDE, max_rows};

}  // namespace tiny_llm_ext::TINY_LLM_ISA

#endif  // the file is empty for other instruction sets
