// Tuning as rows of data. The first row that matches the device and the head dims, and fits the device's
// limits, wins.
#pragma once

#include <cstdint>
#include <string>

#include "plan.hpp"

namespace vkattn::core {

// Numbers of the tile kernels; meanings in shaders/lib/tiles.glsl.
struct TileNumbers {
    uint32_t threads, lanes, rows, cols, chunk, p_blocks, v_keys, prefetch, unroll;

    uint32_t tile_q() const { return rows * (threads / lanes); }
    uint32_t tile_kv() const { return cols * lanes; }
};

struct TuningRow {
    const char* name;
    enum class Device { any, cpu, nvidia } device;
    uint32_t max_head_dim_v;
    TileNumbers numbers;
};

struct TileChoice {
    std::string row;
    TileNumbers numbers;
    uint32_t pool_vec4;
};

// Shared memory of the tile kernels in vec4; the shaders are given this number.
uint32_t pool_vec4(const TileNumbers& n, const Problem& problem);

Result<TileChoice> choose_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options);

// "threads=256,lanes=16,...", the form that options.tuning takes.
std::string to_text(const TileNumbers& numbers);

// The whole table, for tests.
const TuningRow* tuning_rows(size_t& count);

}  // namespace vkattn::core
