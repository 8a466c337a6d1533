// The AMX tile registers: eight matrices of up to 16 rows of up to 64 bytes.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int TILE_SIDE = 16;       // maximum rows, and maximum columns of 32 bits
constexpr int TILE_ROW_BYTES = 64;  // maximum bytes per row
constexpr int64_t TILE_BYTES = TILE_SIDE * TILE_ROW_BYTES;

// Required between stores and tile loads of the stored data: GCC's _tile_loadd does not declare
// that it reads memory, so the stores could be delayed or removed. (_tile_stored declares that it
// writes.)
inline void compiler_barrier() { asm volatile("" ::: "memory"); }

/// Use of the calling thread's tile registers, with the shapes given to the constructor. Not
/// nestable.
class TileRegisters {
   public:
    struct Shape {
        int rows, row_bytes;
    };

    explicit TileRegisters(const Shape (&shapes)[8]) {
        // Operand of _tile_loadconfig.
        struct alignas(64) {
            uint8_t palette = 1;
            uint8_t start_row = 0;
            uint8_t reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; i++) {
            config.rows[i] = static_cast<uint8_t>(shapes[i].rows);
            config.row_bytes[i] = static_cast<uint16_t>(shapes[i].row_bytes);
        }
        compiler_barrier();
        _tile_loadconfig(&config);
    }
    ~TileRegisters() { _tile_release(); }
    TileRegisters(const TileRegisters&) = delete;
    TileRegisters& operator=(const TileRegisters&) = delete;
};

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
