// quantized_matmul with AMX: one tdpbf16ps multiplies 16 outputs × 32 weights by 32 activations of
// 16 rows of a, which takes 256 vdpbf16ps.
//
// Weights are tiles with an output in each row, just as b lies in memory; activations are tiles
// with a row of a in each column (quantized_matmul_amx_tiles.h). A group's products are summed in a
// tile that starts from zero, and leave it to be scaled and added to the totals.
//
// The columns of a tile do not depend on each other: one row of a alone goes through the same steps
// in a tile of one column, and gets the same bits as among a thousand.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AMX_BF16__)

#include "src/quantized_matmul/quantized_matmul_amx_tiles.h"

namespace tiny_llm_ext {

namespace {

constexpr int64_t MOST_BLOCKS = 16;  // of SIDE rows of a, whose sums stay in the L2 cache

// A panel of outputs on its way.
struct Panel {
    const QuantizedMatmulJob* job;
    Layout layout;
    const uint32_t* activations;  // tiles: see Layout
    const float* sums;            // groups × blocks·SIDE
    int64_t first;                // output
    int outputs;                  // PANEL, or fewer at the end
    float* scales;                // groups × PANEL
    float* biases;                // groups × PANEL
    __m512* totals;               // M = 1: PANEL_TILES vectors of outputs;
                                  // else blocks × PANEL vectors of rows of a
};

// O × groups of 16-bit numbers -> groups × PANEL of float32.
void load_by_group(const Panel& panel, const uint16_t* in, float* out) {
    const int64_t groups = panel.layout.groups;
    alignas(64) uint32_t rows[SIDE][SIDE];
    __m512i column[SIDE];
    for (int64_t g = 0; g < groups; g += SIDE) {
        const int64_t count = groups - g < SIDE ? groups - g : SIDE;
        const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
        for (int o = 0; o < PANEL; o += SIDE) {
            for (int i = 0; i < SIDE; i++) {
                const uint16_t* row = in + (panel.first + o + i) * groups + g;
                const __m256i x = o + i < panel.outputs ? _mm256_maskz_loadu_epi16(mask, row)
                                                        : _mm256_setzero_si256();
                _mm512_store_ps(rows[i], widen(x, panel.job->scale_format));
            }
            transpose(rows[0], SIDE, SIDE, SIDE, column);
            for (int64_t i = 0; i < count; i++) {
                _mm512_storeu_si512(out + (g + i) * PANEL + o, column[i]);
            }
        }
    }
}

// total + scale · products + bias · Σ a
inline __m512 add_group(__m512 total, const float* products, __m512 scale, __m512 sum,
                        __m512 bias) {
    total = _mm512_fmadd_ps(_mm512_load_ps(products), scale, total);
    return _mm512_fmadd_ps(sum, bias, total);
}

// Adds one tile of products, SIDE outputs from `o`, to the totals of one block of rows.
void add_tile(const Panel& panel, int64_t group, int o, int64_t block, int64_t first_block,
              const float* products) {
    const float* scales = panel.scales + group * PANEL + o;
    const float* biases = panel.biases + group * PANEL + o;
    const float* sums = panel.sums + (group * panel.layout.blocks + block) * SIDE;
    if (panel.layout.columns == 1) {  // the lanes are outputs
        __m512& total = panel.totals[o / SIDE];
        total = add_group(total, products, _mm512_load_ps(scales), _mm512_set1_ps(sums[0]),
                          _mm512_load_ps(biases));
        return;
    }
    __m512* totals = panel.totals + (block - first_block) * PANEL + o;
    const __m512 sum = _mm512_load_ps(sums);  // the lanes are rows of a
#pragma GCC unroll 4
    for (int i = 0; i < SIDE; i++) {
        totals[i] = add_group(totals[i], products + i * SIDE, _mm512_set1_ps(scales[i]), sum,
                              _mm512_set1_ps(biases[i]));
    }
}

// Four tiles of products that left their registers, and where they belong. They are added after the
// next four tiles have been started: a tile that has just been stored is not there yet.
struct Products {
    int64_t group = -1;  // none
    int outputs[4];      // each tile's first output
    int64_t blocks[4];   // each tile's block of rows; −1 for one that is not added
    alignas(64) float tiles[4][SIDE * SIDE];
};

void add_products(const Panel& panel, Products& products, int64_t first_block) {
    for (int i = 0; i < 4 && products.group >= 0; i++) {
        if (products.blocks[i] >= 0) {
            add_tile(panel, products.group, products.outputs[i], products.blocks[i], first_block,
                     products.tiles[i]);
        }
    }
    products.group = -1;
}

// One group of all the panel's outputs and one block of rows: a register of sums for each of the
// PANEL_TILES.
void multiply_one_block(const Panel& panel, int64_t group, const Weights& weights, Unpacking& next,
                        Products& products) {
    const Layout& layout = panel.layout;
    const int64_t stride = layout.columns * 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < layout.group_segments; i++) {
        const int64_t segment = group * layout.group_segments + i;
        for (int lookup = 0; lookup < LOOKUPS; lookup++) {
            next.take_piece();
            for (int plane = 0; plane < layout.planes; plane++) {
                _tile_loadd(6, panel.activations + layout.tile(segment, lookup, plane, 0), stride);
                _tile_loadd(4, weights.tile(layout, segment, lookup, 0), VECTOR);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(5, weights.tile(layout, segment, lookup, 1), VECTOR);
                _tile_dpbf16ps(1, 5, 6);
                _tile_loadd(4, weights.tile(layout, segment, lookup, 2), VECTOR);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(5, weights.tile(layout, segment, lookup, 3), VECTOR);
                _tile_dpbf16ps(3, 5, 6);
            }
        }
    }
    products.group = group;
    for (int i = 0; i < 4; i++) {
        products.outputs[i] = i * SIDE;
        products.blocks[i] = 0;
    }
    _tile_stored(0, products.tiles[0], stride);
    _tile_stored(1, products.tiles[1], stride);
    _tile_stored(2, products.tiles[2], stride);
    _tile_stored(3, products.tiles[3], stride);
}

// One group of two tiles of outputs, from `tile`, and two blocks of rows, from `block`. At the end
// of an odd number of blocks the second is the first again, and is not added.
void multiply_two_blocks(const Panel& panel, int64_t group, const Weights& weights, int tile,
                         int64_t block, Products& products) {
    const Layout& layout = panel.layout;
    const int64_t second = block + 1 < layout.blocks ? block + 1 : block;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < layout.group_segments; i++) {
        const int64_t segment = group * layout.group_segments + i;
        for (int lookup = 0; lookup < LOOKUPS; lookup++) {
            _tile_loadd(4, weights.tile(layout, segment, lookup, tile), VECTOR);
            _tile_loadd(5, weights.tile(layout, segment, lookup, tile + 1), VECTOR);
            for (int plane = 0; plane < layout.planes; plane++) {
                const uint32_t* a = panel.activations;
                _tile_loadd(6, a + layout.tile(segment, lookup, plane, block), VECTOR);
                _tile_loadd(7, a + layout.tile(segment, lookup, plane, second), VECTOR);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 5, 6);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    products.group = group;
    for (int i = 0; i < 4; i++) {
        products.outputs[i] = (tile + i % 2) * SIDE;
        products.blocks[i] = i < 2 ? block : second == block ? -1 : second;
    }
    _tile_stored(0, products.tiles[0], VECTOR);
    _tile_stored(1, products.tiles[1], VECTOR);
    _tile_stored(2, products.tiles[2], VECTOR);
    _tile_stored(3, products.tiles[3], VECTOR);
}

// Rounds and stores the totals of the blocks of rows from first_block.
void store_totals(const Panel& panel, int64_t first_block, int64_t blocks) {
    const QuantizedMatmulJob& job = *panel.job;
    for (int o = 0; o < panel.outputs; o += SIDE) {
        uint16_t* out = job.out + panel.first + o;
        if (panel.layout.columns == 1) {
            store_halves(out, panel.totals[o / SIDE], panel.outputs - o, job.format);
            continue;
        }
        for (int64_t block = 0; block < blocks; block++) {
            __m512i rows[SIDE];  // of a, 16 outputs each
            transpose((const uint32_t*)(panel.totals + block * PANEL + o), SIDE, SIDE, SIDE, rows);
            const int64_t first = (first_block + block) * SIDE;
            for (int64_t r = 0; r < SIDE && first + r < job.M; r++) {
                store_halves(out + (first + r) * job.O, _mm512_castsi512_ps(rows[r]),
                             panel.outputs - o, job.format);
            }
        }
    }
}

// The panel's outputs for `blocks` blocks of rows.
void run_panel(const Panel& panel, Unpacking& unpacking, int64_t first_block, int64_t blocks,
               Weights* weights) {
    const Layout& layout = panel.layout;
    const int64_t vectors = panel.layout.columns == 1 ? PANEL_TILES : blocks * PANEL;
    for (int64_t i = 0; i < vectors; i++) {
        panel.totals[i] = _mm512_setzero_ps();
    }
    Products products[2];
    int turn = 0;
    unpacking.begin(0, &weights[0]);
    for (int64_t unit = 0; unit < layout.units; unit++) {
        unpacking.finish();
        unpacking.begin(unit + 1, &weights[(unit + 1) % 2]);
        const int64_t last = layout.first_group(unit + 1);
        for (int64_t group = layout.first_group(unit); group < last; group++) {
            for (int64_t block = first_block; block < first_block + blocks; block += 2) {
                for (int tile = 0; tile < PANEL_TILES; tile += 2) {
                    if (layout.blocks == 1) {
                        multiply_one_block(panel, group, weights[unit % 2], unpacking,
                                           products[turn]);
                        tile = PANEL_TILES;  // all of them at once
                    } else {
                        unpacking.take_piece();
                        multiply_two_blocks(panel, group, weights[unit % 2], tile, block,
                                            products[turn]);
                    }
                    turn = 1 - turn;
                    add_products(panel, products[turn], first_block);
                }
            }
        }
    }
    add_products(panel, products[1 - turn], first_block);
    store_totals(panel, first_block, blocks);
}

int64_t scratch_bytes(const QuantizedMatmulJob& job) { return 4 * layout_of(job).words; }

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Layout layout = layout_of(job);
    for (int64_t row = first_row; row < last_row; row += SIDE) {
        prepare_block(job, layout, row / SIDE, static_cast<uint32_t*>(scratch));
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    const Layout layout = layout_of(job);
    const int64_t most = layout.blocks < MOST_BLOCKS ? layout.blocks : MOST_BLOCKS;
    const int64_t floats = (2 * layout.groups + most * SIDE) * PANEL;
    char* memory = static_cast<char*>(_mm_malloc(2 * sizeof(Weights) + floats * 4, 64));
    Weights* weights = reinterpret_cast<Weights*>(memory);
    Panel panel;
    panel.job = &job;
    panel.layout = layout;
    panel.activations = static_cast<const uint32_t*>(scratch);
    panel.sums = static_cast<const float*>(scratch) + layout.sums_offset;
    panel.scales = reinterpret_cast<float*>(weights + 2);
    panel.biases = panel.scales + layout.groups * PANEL;
    panel.totals = reinterpret_cast<__m512*>(panel.biases + layout.groups * PANEL);
    __m512i tables[2];
    make_tables(job.bits, tables);
    Unpacking unpacking;
    unpacking.layout = &layout;
    unpacking.even = tables[0];
    unpacking.odd = tables[1];
    configure_tiles(layout);
    for (int64_t o = first_output; o < last_output; o += PANEL) {
        panel.first = o;
        panel.outputs = static_cast<int>(last_output - o < PANEL ? last_output - o : PANEL);
        unpacking.b = job.b + o * layout.row_bytes / 4;
        unpacking.outputs = panel.outputs;
        load_by_group(panel, job.scales, panel.scales);
        load_by_group(panel, job.biases, panel.biases);
        for (int64_t block = 0; block < layout.blocks; block += most) {
            run_panel(panel, unpacking, block,
                      layout.blocks - block < most ? layout.blocks - block : most, weights);
        }
    }
    _tile_release();
    _mm_free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_amx = {scratch_bytes, prepare, run};

}  // namespace tiny_llm_ext

#endif  // elsewhere nothing is left of this file
