// Tuning as rows of data. The first row that matches the device and the head dims, and fits the device's limits, wins.
// The planners of the portable kernels call choose_tiles, that of the matrix kernel choose_matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "matrix.hpp"
#include "plan.hpp"

namespace vkattn::core {

enum class KernelKind {
    rows,
    rows_dot,
    matrix_rows,
    tiles,
    tiles_dot,
    matrix,
    matrix_khr,
    backward,
    backward_dot,
    backward_matrix,
    backward_matrix_khr
};

// Numbers of the kernels; meanings in shaders/interface. The rows kernel has threads, lanes, rows and unroll only, and
// cols = 0 says so. q_slices: slices of dquery; kv_slices: slices of dkey and dvalue, 1 or even. rolled: 1 takes the
// form for CPUs of a module that has two; no row has it, it comes from the device.
struct TileNumbers {
    uint32_t threads = 0, lanes = 0, rows = 0, cols = 0, chunk = 0, p_blocks = 0, v_keys = 0, prefetch = 0,
             unroll = 0;
    uint32_t q_slices = 1, kv_slices = 1, rolled = 0;

    bool of_rows_kernel() const { return cols == 0; }
    uint32_t tile_q() const { return of_rows_kernel() ? rows : rows * (threads / lanes); }
    uint32_t tile_kv() const { return of_rows_kernel() ? threads : cols * lanes; }
};

constexpr TileNumbers rows_kernel(uint32_t threads, uint32_t lanes, uint32_t rows, uint32_t prefetch,
                                  uint32_t unroll) {
    return {.threads = threads, .lanes = lanes, .rows = rows, .prefetch = prefetch, .unroll = unroll};
}

// True if the caller asks for a kernel by its name.
inline bool is_named(const Options& options) {
    return !options.kernel.empty() && options.kernel != "auto";
}

struct TuningRow {
    const char* name;
    DeviceKind device;
    uint32_t max_head_dim;  // head_dim_v; of backward rows the larger of both
    uint32_t max_rows;      // query rows that share a kv head
    uint32_t residency;  // workgroups of a multiprocessor that keep it busy: to how many the keys are split
    TileNumbers numbers;
};

constexpr uint32_t any_rows = UINT32_MAX;

struct TileChoice {
    std::string row;
    TileNumbers numbers;
    uint32_t pool_vec4;
    uint32_t residency;
    bool pack;                            // the query rows of a kv head's group share tiles
    std::optional<MatrixNumbers> matrix;  // of the matrix kernel, which has no other numbers
    bool isolates_rows = false;           // what is not finite stays out of rows that do not see it
    bool exp2_loses_nan = false;          // quirks.hpp
    bool holds_blocks = false;            // quirks.hpp
    bool dot = false;                     // products are 16-bit dot products
    std::optional<BackwardMatrixNumbers> backward_matrix;  // of the backward on matrix units, likewise

    // For the backward on matrix units these are the numbers of the pass for dquery.
    uint32_t tile_q() const {
        return matrix ? matrix->tile_q() : backward_matrix ? backward_matrix->q_held() : numbers.tile_q();
    }
    uint32_t tile_kv() const {
        return matrix ? matrix->tile_kv : backward_matrix ? backward_matrix->q_walked : numbers.tile_kv();
    }
    uint32_t threads() const {
        return matrix ? matrix->threads() : backward_matrix ? backward_matrix->q_threads() : numbers.threads;
    }
    std::string tuning() const;  // in the form that options.tuning takes
};

// Sets isolates_rows and exp2_loses_nan.
void set_nonfinite_rules(TileChoice& tiles, const DeviceCaps& caps, const Problem& problem,
                         const Options& options);

// Shared memory of a kernel in vec4; the shaders are given this number.
uint32_t pool_vec4(const TileNumbers& n, const Problem& problem, KernelKind kind);

// Invocations that share a key in the sums of backward_key_value.comp.
inline uint32_t key_lanes(const TileNumbers& n) {
    return n.threads / (n.tile_kv() / n.rows);
}

// Size, in vec4, of one key's dkey and dvalue accumulators of all slices, which are kept in scratch between dispatches.
uint32_t kept_kv_vec4(const TileNumbers& n, const Problem& problem);

Result<TileChoice> choose_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options,
                                KernelKind kind);

// The device's multiprocessors, or a guess by its type.
uint32_t multiprocessors_of(const DeviceCaps& caps);

// Chooses the numbers of the matrix kernel, on what the device has of matrix units.
Result<TileChoice> choose_matrix(const DeviceCaps& caps, const Problem& problem, const Options& options,
                                 KernelKind kind);

// Chooses the numbers of the backward on matrix units.
Result<TileChoice> choose_backward_matrix(const DeviceCaps& caps, const Problem& problem,
                                          const Options& options, KernelKind kind);

// True if the query heads of a group share tiles, because one head's rows would not fill a tile: keys and values are
// then read once. Packed rows lie densely in scratch, within 31-bit offsets.
bool packs(const Problem& p, uint32_t tile_q);
// Says that a kernel is for so many query rows of a key head at most.
std::string too_many_rows(uint64_t most, uint32_t group_size);

// "threads=256,lanes=16,...", the form that options.tuning takes.
std::string to_text(const TileNumbers& numbers);
std::string to_text(const MatrixNumbers& numbers);
std::string to_text(const BackwardMatrixNumbers& numbers);

// Numbers by their names in that form. set_numbers() sets those that a text names.
template <class Numbers>
using NumberFields = std::vector<std::pair<std::string_view, uint32_t Numbers::*>>;
template <class Numbers>
Result<bool> set_numbers(Numbers& numbers, std::string_view text, const NumberFields<Numbers>& fields);
template <class Numbers>
std::string text_of(const Numbers& numbers, const NumberFields<Numbers>& fields);

// Tells which limit of the device a workgroup exceeds, or "".
std::string too_large(const DeviceCaps& caps, uint32_t threads, uint64_t pool_vec4);

// True if this device could not build the pipelines of a row: it is passed over.
bool is_rejected(const Options& options, std::string_view row);

// The whole table, for tests: of the forward kernels, or of the backward's.
const TuningRow* tuning_rows(KernelKind kind, size_t& count);

}  // namespace vkattn::core
