// quantized_matmul with AMX: one tdpbusd multiplies 16 outputs × 64 weights by 64 activations of 16
// rows, in integers.
//
// The numbers are those of quantized_matmul_fixed_point.cpp: activations rounded to 16-bit
// integers, exact sums over a group, and the same float32 operations after them. Few rows, for
// which tiles would stay empty, are its business. A row therefore has the same bits whichever of
// the two computes it.
//
// AMX multiplies bytes. An integer A is 256 · high + low, with a signed high and an unsigned low
// byte:
//
//     Σ q·A = 256 · Σ q·high + Σ q·low        |Σ q·A| ≤ 255 · 32767 · 128 < 2³¹
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AMX_INT8__)

#include "src/quantized_matmul/quantized_matmul_amx_tiles.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int64_t FEW_ROWS = 2;      // of integers: up to here, tiles are too empty to pay
constexpr int64_t MOST_BLOCKS = 16;  // of SIDE rows, whose totals stay in the L2 cache

// A panel of outputs on its way.
struct Panel {
    const QuantizedMatmulJob* job;
    Layout layout;
    const uint32_t* scratch;  // activations: see Layout
    int64_t first;            // output
    int outputs;              // PANEL, or fewer at the end
    float* scales;            // groups × PANEL
    float* biases;            // groups × PANEL
    Floats* totals;           // blocks × PANEL: a block's rows are the lanes
};

// O × groups of 16-bit numbers -> groups × PANEL of float32.
void load_by_group(const Panel& panel, const uint16_t* in, float* out) {
    const int64_t groups = panel.layout.groups;
    for (int o = 0; o < PANEL; o += SIDE) {
        widen_columns(in + (panel.first + o) * groups, groups, panel.outputs - o, groups,
                      panel.job->scale_format, out + o, PANEL);
    }
}

// Four tiles of sums that left their registers.
struct Products {
    int64_t group = -1;  // none
    int64_t block;
    int tile;  // of outputs: this and the next, each with high and low bytes
    alignas(64) int32_t sums[2][PLANES][SIDE * SIDE];
};

// totals += (scale · step) · Σ q·A + bias · (step · Σ A), for the outputs of Products and a block
// of rows.
//
// A few outputs at a time, between the multiplications of the next products: tiles and vectors are
// different units, and a core looks too few instructions ahead to find work for both by itself. It
// also gives tiles that were just stored the time to arrive.
class Addition {
   public:
    Addition(const Panel& panel, const Products& products, int64_t first_block)
        : left_(products.group < 0 ? 0 : 2 * SIDE), sums_(products.sums[0][0]) {
        if (left_ == 0) {
            return;
        }
        const Layout& layout = panel.layout;
        const int64_t row = (products.group * layout.blocks + products.block) * SIDE;
        const int64_t o = products.tile * SIDE;
        step_ = load_bits<Floats>(panel.scratch + layout.factors + row);
        sum_ = load_bits<Floats>(panel.scratch + layout.sums + row);
        scales_ = panel.scales + products.group * PANEL + o;
        biases_ = panel.biases + products.group * PANEL + o;
        totals_ = panel.totals + (products.block - first_block) * PANEL + o;
    }

    /// Adds the next FEW outputs.
    __attribute__((always_inline)) void add_few() {
        if (left_ == 0) {
            return;
        }
#pragma GCC unroll 4
        for (int i = 0; i < FEW; i++) {
            const auto high = load_bits<Ints>(sums_ + i * SIDE);
            const auto low = load_bits<Ints>(sums_ + (SIDE + i) * SIDE);
            const Floats dot = __builtin_convertvector((high << 8) + low, Floats);
            const Floats total = fma(splat(scales_[i]) * step_, dot, totals_[i]);
            totals_[i] = fma(splat(biases_[i]), sum_, total);
        }
        left_ -= FEW;
        scales_ += FEW;
        biases_ += FEW;
        totals_ += FEW;
        sums_ += (left_ == SIDE ? SIDE + FEW : FEW) * SIDE;  // the second output's come after low
    }

    void add_rest() {
        while (left_ > 0) {
            add_few();
        }
    }

   private:
    static constexpr int FEW = 4;

    int left_;  // outputs
    const int32_t* sums_;
    Floats step_, sum_;
    const float *scales_, *biases_;
    Floats* totals_;
};

// One group of two tiles of outputs, from `tile`, and one block of rows; meanwhile, the products
// before these are added.
void multiply(const Panel& panel, int64_t group, const Weights& weights, int tile, int64_t block,
              Addition before, Products& products) {
    const Layout& layout = panel.layout;
    const int64_t segment = group * layout.group_segments;
    const uint32_t* a = panel.scratch + layout.tile(segment, 0, 0, block);
    const int64_t plane = layout.blocks * layout.tile_words;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < layout.group_segments; i++) {
        for (int part = 0; part < layout.parts; part++, a += PLANES * plane) {
            _tile_loadd(4, weights.tile(layout, segment + i, part, tile), VECTOR);
            _tile_loadd(6, a, VECTOR);
            _tile_dpbusd(0, 4, 6);
            before.add_few();
            _tile_loadd(7, a + plane, VECTOR);
            _tile_dpbuud(1, 4, 7);
            before.add_few();
            _tile_loadd(5, weights.tile(layout, segment + i, part, tile + 1), VECTOR);
            _tile_dpbusd(2, 5, 6);
            before.add_few();
            _tile_dpbuud(3, 5, 7);
            before.add_few();
        }
    }
    before.add_rest();
    products.group = group;
    products.block = block;
    products.tile = tile;
    _tile_stored(0, products.sums[0][0], VECTOR);
    _tile_stored(1, products.sums[0][1], VECTOR);
    _tile_stored(2, products.sums[1][0], VECTOR);
    _tile_stored(3, products.sums[1][1], VECTOR);
}

// Rounds and stores the totals of the blocks of rows from first_block. A float16 row is the sum of
// two rows of integers.
void store_totals(const Panel& panel, int64_t first_block, int64_t blocks) {
    const QuantizedMatmulJob& job = *panel.job;
    const int together = rows_of_integers(job.format);
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = (first_block + block) * SIDE;
        for (int o = 0; o < panel.outputs; o += SIDE) {
            __m512i rows[SIDE];  // 16 outputs each
            transpose((const uint32_t*)(panel.totals + block * PANEL + o), SIDE, SIDE, SIDE, rows);
            for (int64_t r = 0; r < SIDE && first + r < panel.layout.rows; r += together) {
                Floats total = (Floats)rows[r];
                if (together == 2) {
                    total += (Floats)rows[r + 1];
                }
                const int count = panel.outputs - o < SIDE ? panel.outputs - o : SIDE;
                store(job.out, (first + r) / together * job.O + panel.first + o, job.format, total,
                      count);
            }
        }
    }
}

// The panel's outputs for `blocks` blocks of rows.
void run_panel(const Panel& panel, int64_t first_block, int64_t blocks, Weights& weights) {
    const Layout& layout = panel.layout;
    const uint32_t* b = panel.job->b + panel.first * layout.row_bytes / 4;
    for (int64_t i = 0; i < blocks * PANEL; i++) {
        panel.totals[i] = Floats{};
    }
    Products products[2];
    int turn = 0;
    for (int64_t unit = 0; unit < layout.units; unit++) {
        unpack(layout, b, unit, panel.outputs, weights);
        const int64_t last = layout.first_group(unit + 1);
        for (int64_t group = layout.first_group(unit); group < last; group++) {
            for (int64_t block = first_block; block < first_block + blocks; block++) {
                for (int tile = 0; tile < PANEL_TILES; tile += 2) {
                    const Addition before(panel, products[1 - turn], first_block);
                    multiply(panel, group, weights, tile, block, before, products[turn]);
                    turn = 1 - turn;
                }
            }
        }
    }
    Addition(panel, products[1 - turn], first_block).add_rest();
    store_totals(panel, first_block, blocks);
}

bool are_few(const QuantizedMatmulJob& job) {
    return job.M * rows_of_integers(job.format) <= FEW_ROWS;
}

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    return are_few(job) ? avx2::quantized_matmul_fixed_point.scratch(job)
                        : 4 * layout_of(job).words;
}

// first_row is a multiple of 16, so that a call has whole blocks.
void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    if (are_few(job)) {
        avx2::quantized_matmul_fixed_point.prepare(job, scratch, first_row, last_row);
        return;
    }
    const Layout layout = layout_of(job);
    const int together = rows_of_integers(job.format);
    const int64_t last = (last_row * together + SIDE - 1) / SIDE;
    for (int64_t block = first_row * together / SIDE; block < last; block++) {
        for (int64_t g = 0; g < layout.groups; g++) {
            prepare_group(job, layout, block, g, static_cast<uint32_t*>(scratch));
        }
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    if (are_few(job)) {
        avx2::quantized_matmul_fixed_point.run(job, scratch, first_output, last_output);
        return;
    }
    const Layout layout = layout_of(job);
    const int64_t most = layout.blocks < MOST_BLOCKS ? layout.blocks : MOST_BLOCKS;
    const int64_t floats = (2 * layout.groups + most * SIDE) * PANEL;
    char* memory = static_cast<char*>(_mm_malloc(sizeof(Weights) + floats * 4, 64));
    Weights* weights = reinterpret_cast<Weights*>(memory);
    Panel panel;
    panel.job = &job;
    panel.layout = layout;
    panel.scratch = static_cast<const uint32_t*>(scratch);
    panel.scales = reinterpret_cast<float*>(weights + 1);
    panel.biases = panel.scales + layout.groups * PANEL;
    panel.totals = reinterpret_cast<Floats*>(panel.biases + layout.groups * PANEL);
    configure_tiles(layout);
    for (int64_t o = first_output; o < last_output; o += PANEL) {
        panel.first = o;
        panel.outputs = static_cast<int>(last_output - o < PANEL ? last_output - o : PANEL);
        load_by_group(panel, job.scales, panel.scales);
        load_by_group(panel, job.biases, panel.biases);
        for (int64_t block = 0; block < layout.blocks; block += most) {
            run_panel(panel, block, layout.blocks - block < most ? layout.blocks - block : most,
                      *weights);
        }
    }
    _tile_release();
    _mm_free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_tiles = {scratch_bytes, prepare, run};

}  // namespace tiny_llm_ext::TINY_LLM_ISA

#endif  // elsewhere nothing is left of this file
