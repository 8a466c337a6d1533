#include "src/gguf_blocks/gguf_blocks.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "common/checks.h"
#include "common/file.h"
#include "common/half.h"
#include "common/rows.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* READ_GGUF = "read_gguf_blocks";
constexpr int GROUP = 32;
constexpr int MAX_BLOCK = 256;  // weights

// Conversion of one block. `codes` are packed pairs of 4-bit integers, or a byte per weight.
using Convert = void (*)(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases);

struct BlockType {
    const char* name;
    int weights, bytes;  // of a block
    int bits;            // of a converted weight
    Convert convert;
};

uint16_t load_16(const uint8_t* bytes) {
    uint16_t x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

float half_at(const uint8_t* bytes) { return float16_to_float(load_16(bytes)); }

// Converts 2n 4-bit integers to MLX's order. In n bytes of a block, the low nibbles hold the first
// n integers and the high nibbles the last n.
void pack_nibbles(const uint8_t* from, int n, uint8_t* to) {
    for (int i = 0; i < n / 2; i++) {
        const unsigned pair = load_16(from + 2 * i);
        to[i] = static_cast<uint8_t>((pair & 0x0f) | (pair >> 4 & 0xf0));
        to[n / 2 + i] = static_cast<uint8_t>((pair >> 4 & 0x0f) | (pair >> 8 & 0xf0));
    }
}

// Unpacks the same layout to a byte per integer.
void spread_nibbles(const uint8_t* from, int n, uint8_t* to) {
    for (int i = 0; i < n; i++) {
        to[i] = from[i] & 0x0f;
        to[n + i] = from[i] >> 4;
    }
}

// Scale, and bias = zero · scale, of a type with signed integers.
void signed_scale(const uint8_t* block, float zero, uint16_t* scale, uint16_t* bias) {
    *scale = load_16(block);
    *bias = float_to_float16(zero * half_at(block));
}

void q4_0(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    signed_scale(block, -8, scales, biases);
    pack_nibbles(block + 2, 16, codes);
}

void q4_1(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    *scales = load_16(block), *biases = load_16(block + 2);
    pack_nibbles(block + 4, 16, codes);
}

// Unpacks 5-bit integers to a byte each, from the fifth bits of all, then the nibbles.
void unpack_5_bits(const uint8_t* bytes, uint8_t* codes) {
    uint32_t high;
    memcpy(&high, bytes, sizeof high);
    spread_nibbles(bytes + 4, 16, codes);
    for (int byte = 0; byte < 4; byte++) {
        for (int bit = 0; bit < 8; bit++) {
            codes[8 * byte + bit] |= (high >> (8 * byte + bit) & 1) << 4;
        }
    }
}

void q5_0(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    signed_scale(block, -16, scales, biases);
    unpack_5_bits(block + 2, codes);
}

void q5_1(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    *scales = load_16(block), *biases = load_16(block + 2);
    unpack_5_bits(block + 4, codes);
}

void q8_0(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    signed_scale(block, -128, scales, biases);
    for (int i = 0; i < GROUP; i++) {
        codes[i] = block[2 + i] ^ 0x80;  // int8 + 128
    }
}

// Scales and biases of the eight groups of a Q4_K or Q5_K block: 6-bit integers in 12 bytes.
void k_scales(const uint8_t* block, uint16_t* scales, uint16_t* biases) {
    const float d = half_at(block), d_min = half_at(block + 2);
    const uint8_t *low = block + 4, *middle = block + 8, *high = block + 12;
    for (int i = 0; i < 4; i++) {
        scales[i] = float_to_float16(d * (low[i] & 63));
        biases[i] = float_to_float16(-d_min * (middle[i] & 63));
        scales[4 + i] = float_to_float16(d * ((high[i] & 15) | (low[i] >> 2 & 48)));
        biases[4 + i] = float_to_float16(-d_min * (high[i] >> 4 | (middle[i] >> 2 & 48)));
    }
}

void q4_k(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    k_scales(block, scales, biases);
    for (int run = 0; run < 4; run++) {
        pack_nibbles(block + 16 + 32 * run, 32, codes + 32 * run);
    }
}

void q5_k(const uint8_t* block, uint8_t* codes, uint16_t* scales, uint16_t* biases) {
    k_scales(block, scales, biases);
    for (int run = 0; run < 4; run++) {
        spread_nibbles(block + 48 + 32 * run, 32, codes + 64 * run);
    }
    for (int group = 0; group < 8; group++) {
        for (int i = 0; i < GROUP; i++) {
            codes[GROUP * group + i] |= (block[16 + i] >> group & 1) << 4;
        }
    }
}

void q6_k(const uint8_t* block, uint8_t* codes, uint16_t* steps, uint16_t* biases) {
    for (int half = 0; half < 2; half++) {
        spread_nibbles(block + 64 * half, 64, codes + 128 * half);
        for (int group = 0; group < 4; group++) {
            for (int i = 0; i < GROUP; i++) {
                codes[128 * half + GROUP * group + i] |=
                    (block[128 + 32 * half + i] >> (2 * group) & 3) << 4;
            }
        }
    }
    const float d = half_at(block + 208);
    for (int group = 0; group < 8; group++) {
        float scales[2];
        for (int i = 0; i < 2; i++) {
            scales[i] = d * static_cast<int8_t>(block[192 + 2 * group + i]);
        }
        const float larger = std::abs(scales[0]) >= std::abs(scales[1]) ? scales[0] : scales[1];
        // If the scales differ only in sign, the range needs 257 steps; 255 longer ones cover it.
        steps[group] = float_to_float16(scales[0] == -scales[1] ? larger * 64 / 255 : larger / 4);
        const float step = float16_to_float(steps[group]);
        biases[group] = float_to_float16(-128 * step);
        for (int part = 0; part < 2; part++) {
            const float ratio = scales[part] / (step == 0 ? 1 : step);
            uint8_t* part_codes = codes + GROUP * group + 16 * part;
            for (int i = 0; i < 16; i++) {
                const float q = static_cast<float>(part_codes[i] - 32) * ratio + 128.5f;
                // Clamped as a float, in this order, because a corrupt scale may yield NaN.
                part_codes[i] = static_cast<uint8_t>(std::min(std::max(0.0f, q), 255.0f));
            }
        }
    }
}

void mxfp4(const uint8_t* block, uint8_t* codes, uint16_t*, uint16_t*) {
    pack_nibbles(block + 1, 16, codes);
}

constexpr BlockType TYPES[] = {
    {"Q4_0", 32, 18, 4, q4_0},   {"Q4_1", 32, 20, 4, q4_1},   {"Q5_0", 32, 22, 8, q5_0},
    {"Q5_1", 32, 24, 8, q5_1},   {"Q8_0", 32, 34, 8, q8_0},   {"Q4_K", 256, 144, 4, q4_k},
    {"Q5_K", 256, 176, 8, q5_k}, {"Q6_K", 256, 210, 8, q6_k}, {"MXFP4", 32, 17, 4, mxfp4},
};

// Packs eight 5-bit integers into five bytes, lowest bits first.
void pack_5_bits(const uint8_t* codes, int weights, uint8_t* to) {
    for (int i = 0; i < weights; i += 8, to += 5) {
        uint64_t word = 0;
        for (int bit = 0; bit < 8; bit++) {
            word |= static_cast<uint64_t>(codes[i + bit]) << (5 * bit);
        }
        for (int byte = 0; byte < 5; byte++) {
            to[byte] = static_cast<uint8_t>(word >> (8 * byte));
        }
    }
}

mx::array allocated(mx::Shape shape, mx::Dtype dtype) {
    mx::array out(std::move(shape), dtype, nullptr, {});
    out.set_status(mx::array::Status::available);
    allocate(out);
    return out;
}

}  // namespace

std::vector<mx::array> read_gguf_blocks(const std::string& path, int64_t begin,
                                        const std::string& name, int rows, int columns, int bits) {
    const BlockType* type = std::find_if(std::begin(TYPES), std::end(TYPES),
                                         [&](const BlockType& each) { return name == each.name; });
    check(type != std::end(TYPES), READ_GGUF,
          "expected type Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4, got ", name);
    const bool is_5_bits = bits == 5 && name[1] == '5';
    check(is_5_bits || bits == type->bits, READ_GGUF, "expected ", type->bits, " bits for ", name,
          ", got ", bits);
    check(begin >= 0 && rows >= 0 && columns > 0 && columns % type->weights == 0, READ_GGUF,
          "expected rows of a multiple of ", type->weights, " weights, got ", rows, "×", columns);
    const bool is_mxfp4 = type->convert == mxfp4;
    const mx::Shape groups{rows, columns / GROUP};
    std::vector<mx::array> out;
    out.push_back(allocated({rows, columns / 32 * bits}, mx::uint32));
    out.push_back(allocated(groups, is_mxfp4 ? mx::uint8 : mx::float16));
    if (!is_mxfp4) {
        out.push_back(allocated(groups, mx::float16));
    }
    auto* integers = reinterpret_cast<uint8_t*>(out[0].data<uint32_t>());
    auto* exponents = is_mxfp4 ? out[1].data<uint8_t>() : nullptr;
    auto* scales = is_mxfp4 ? nullptr : reinterpret_cast<uint16_t*>(out[1].data<mx::float16_t>());
    auto* biases = is_mxfp4 ? nullptr : reinterpret_cast<uint16_t*>(out[2].data<mx::float16_t>());

    const File file(READ_GGUF, path);
    const int64_t blocks = int64_t{rows} * (columns / type->weights);
    const int64_t batch = File::READ_BYTES / type->bytes;
    const int64_t code_bytes = type->weights * bits / 8, block_groups = type->weights / GROUP;
    std::atomic<int> error = 0;
    parallel_for((blocks + batch - 1) / batch, [&](int64_t chunk) {
        const int64_t first = chunk * batch, last = std::min(blocks, first + batch);
        std::vector<uint8_t> read((last - first) * type->bytes);
        const int failed =
            file.read(read.data(), static_cast<int64_t>(read.size()), begin + first * type->bytes);
        if (failed != 0) {
            error = failed;
            return;
        }
        for (int64_t block = first; block < last; block++) {
            const uint8_t* from = read.data() + (block - first) * type->bytes;
            uint8_t* to = integers + block * code_bytes;
            if (is_mxfp4) {
                exponents[block] = from[0];
                type->convert(from, to, nullptr, nullptr);
                continue;
            }
            uint8_t codes[MAX_BLOCK];
            type->convert(from, is_5_bits ? codes : to, scales + block * block_groups,
                          biases + block * block_groups);
            if (is_5_bits) {
                pack_5_bits(codes, type->weights, to);
            }
        }
    });
    if (error != 0) {
        file.fail(error);
    }
    return out;
}

}  // namespace tiny_llm_ext
