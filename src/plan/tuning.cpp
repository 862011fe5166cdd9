#include "tuning.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "quirks.hpp"
#include "terms.hpp"

namespace vkattn::core {
namespace {

using Device = DeviceKind;

constexpr uint64_t max_packed_rows = 512;

// Numbers of a row of the tile kernels, each by its name.
struct Tiles : TileNumbers {
    constexpr Tiles with(uint32_t TileNumbers::*number, uint32_t value) const {
        Tiles all = *this;
        all.*number = value;
        return all;
    }
    constexpr Tiles stages(uint32_t head_dims, uint32_t keys) const {
        return with(&TileNumbers::chunk, head_dims).with(&TileNumbers::v_keys, keys);
    }
    constexpr Tiles p_blocks(uint32_t n) const { return with(&TileNumbers::p_blocks, n); }
    constexpr Tiles ahead() const { return with(&TileNumbers::prefetch, 1); }
    constexpr Tiles unrolls(uint32_t lines) const { return with(&TileNumbers::unroll, lines); }
    constexpr Tiles slices(uint32_t query, uint32_t keys) const {
        return with(&TileNumbers::q_slices, query).with(&TileNumbers::kv_slices, keys);
    }
};
constexpr Tiles tiles(uint32_t threads, uint32_t lanes, uint32_t rows, uint32_t cols) {
    return {{.threads = threads, .lanes = lanes, .rows = rows, .cols = cols, .p_blocks = 1}};
}

// Rows of the forward kernels. Most specific first within a device. docs/tuning.md has the commands, and what else was
// tried. Rows for GPUs other than NVIDIA's were not run on their own devices: their figures are of tools/gate's
// compilers.
// clang-format off
constexpr TuningRow rows[] = {
    // max: head_dim_v, rows, residency; tiles(threads, lanes, rows, cols).stages(chunk, v_keys)
    // H200, decoding, float16, D128: 14.2 TFLOP/s, 88 % of the copy bandwidth. NVK spills this row, so has its own.
    // H200, float32, N 32,768, batch 8, 64 and 8 heads, D128: 0.73 ms. Eight rows at a time took 2.28 ms.
    {"nvidia-rows4", Device::nvidia_driver, 128, 16, 4, rows_kernel(64, 8, 4, 1, 8)},
    // H200, float16, N 32,768, batch 8, 32 and 8 heads: 0.88 ms. With the numbers for D576 it took 2.42 ms.
    {"nvidia-rows-d256", Device::nvidia_driver, 256, 8, 4, rows_kernel(64, 16, 4, 1, 4)},
    {"nvk-rows4", Device::nvidia, 128, 4, 4, rows_kernel(64, 8, 4, 0, 4)},
    {"nvidia-rows-d576", Device::nvidia_driver, 576, 8, 4, rows_kernel(64, 32, 4, 0, 4)},
    // lavapipe, D64 and D128: three times as fast as the tile kernel.
    {"cpu-rows-d128", Device::cpu, 128, 8, 1, rows_kernel(8, 8, 4, 0, 1)},
    {"cpu-rows-d576", Device::cpu, 576, 8, 1, rows_kernel(16, 16, 4, 0, 1)},
    // They spill on no AMD device; on NVK only beyond D256.
    {"gpu-rows-d128", Device::many_registers, 128, 4, 4, rows_kernel(64, 8, 4, 0, 2)},
    {"gpu-rows-d256", Device::many_registers, 256, 4, 4, rows_kernel(32, 32, 4, 0, 2)},
    {"amd-rows-d576", Device::amd, 576, 4, 4, rows_kernel(32, 32, 4, 0, 2)},
    // Adreno 740, D128: 2.60 instructions a multiply-add.
    {"adreno-rows-d128", Device::adreno, 128, 4, 4, rows_kernel(64, 16, 4, 0, 2)},
    {"few-rows-d128", Device::any, 128, 4, 4, rows_kernel(32, 32, 4, 0, 2)},

    // H200, float32: 34.9 TFLOP/s at D64, 37.1 at D128, 31.4 at D256, 24.0 at D512.
    {"nvidia-d64", Device::nvidia, 64, any_rows, 1, tiles(256, 16, 8, 8).stages(32, 32).ahead().unrolls(32)},
    {"nvidia-d128", Device::nvidia, 128, any_rows, 1, tiles(256, 16, 8, 8).stages(32, 16).ahead().unrolls(16)},
    {"nvidia-d256", Device::nvidia_driver, 256, any_rows, 1, tiles(256, 32, 8, 8).stages(32, 8).ahead().unrolls(8)},
    {"nvidia-d576", Device::nvidia_driver, 576, any_rows, 1, tiles(256, 32, 4, 8).stages(32, 8).ahead().unrolls(32)},

    // lavapipe: one lane a row is fastest. From D256 on, more lanes keep the time to compile at 1.7 s.
    {"cpu-d128", Device::cpu, 128, any_rows, 1, tiles(8, 1, 4, 16).stages(16, 16).p_blocks(4).unrolls(1)},
    {"cpu-d256", Device::cpu, 256, any_rows, 1, tiles(8, 4, 4, 8).stages(16, 16).p_blocks(2).unrolls(1)},
    {"cpu-d576", Device::cpu, 576, any_rows, 1, tiles(8, 8, 4, 8).stages(16, 8).p_blocks(2).unrolls(1)},

    // They spill on no AMD and no NVK device.
    {"gpu-d64", Device::many_registers, 64, any_rows, 2, tiles(128, 8, 4, 4).stages(16, 16).ahead().unrolls(4)},
    {"gpu-d128", Device::many_registers, 128, any_rows, 2, tiles(128, 16, 4, 4).stages(16, 16).ahead().unrolls(4)},
    {"gpu-d256", Device::many_registers, 256, any_rows, 2, tiles(128, 32, 4, 4).stages(16, 16).ahead().unrolls(4)},
    {"gpu-d576", Device::many_registers, 576, any_rows, 2, tiles(128, 64, 4, 4).stages(16, 4).ahead().unrolls(4)},

    // Adreno 740, float32: 1.40 instructions a multiply-add at D64, 1.34 at D128, 1.50 at D256. Shared memory limits
    // the waves. These devices have 192 registers an invocation.
    {"adreno-d64", Device::adreno, 64, any_rows, 2, tiles(128, 8, 4, 8).stages(16, 16).unrolls(8)},
    {"adreno-d128", Device::adreno, 128, any_rows, 2, tiles(128, 8, 4, 8).stages(16, 8).unrolls(8)},
    {"adreno-d256", Device::adreno, 256, any_rows, 2, tiles(128, 16, 4, 8).stages(8, 4).unrolls(8)},
    {"adreno-d512", Device::adreno, 512, any_rows, 2, tiles(256, 32, 4, 4).stages(16, 4).unrolls(8)},
    {"adreno-d576", Device::adreno, 576, any_rows, 2, tiles(128, 64, 4, 4).stages(8, 4).unrolls(8)},

    // Adreno 660, float32: 1.69 instructions a multiply-add at D64, 1.63 at D128, 1.98 at D256. Nothing spills.
    {"adreno-few-d64", Device::adreno_few, 64, any_rows, 2, tiles(64, 8, 4, 4).stages(16, 16).unrolls(4)},
    {"adreno-few-d128", Device::adreno_few, 128, any_rows, 2, tiles(64, 8, 4, 4).stages(16, 16).unrolls(8)},
    {"adreno-few-d256", Device::adreno_few, 256, any_rows, 2, tiles(64, 16, 4, 4).stages(16, 8).unrolls(8)},
    {"adreno-few-d512", Device::adreno_few, 512, any_rows, 2, tiles(64, 32, 4, 4).stages(16, 4).unrolls(4)},
    {"adreno-few-d576", Device::adreno_few, 576, any_rows, 2, tiles(64, 64, 4, 4).stages(8, 4).unrolls(4)},

    // Apple M1, float16: 1.53 instructions a multiply-add at D64, 1.50 at D128, 1.75 at D256. There are 128 registers
    // an invocation. A core holds two workgroups of 192 invocations.
    {"apple-d64", Device::apple, 64, any_rows, 2, tiles(128, 8, 4, 8).stages(16, 16).unrolls(4)},
    {"apple-d128", Device::apple, 128, any_rows, 2, tiles(192, 16, 4, 8).stages(16, 16).unrolls(4)},
    {"apple-d256", Device::apple, 256, any_rows, 2, tiles(256, 32, 4, 4).stages(16, 8).unrolls(4)},
    {"apple-d512", Device::apple, 512, any_rows, 2, tiles(256, 64, 4, 4).stages(16, 4).unrolls(4)},
    {"apple-d576", Device::apple, 576, any_rows, 2, tiles(288, 72, 4, 4).stages(16, 4).unrolls(4)},

    // 128 registers an invocation are enough: nothing is fetched ahead, and more lanes share head dims. The small
    // rows fit 16 KiB of shared memory.
    {"few-d64", Device::any, 64, any_rows, 2, tiles(128, 8, 4, 4).stages(16, 16).unrolls(4)},
    {"few-d128", Device::any, 128, any_rows, 2, tiles(128, 16, 4, 4).stages(16, 16).unrolls(4)},
    {"few-d256", Device::any, 256, any_rows, 2, tiles(128, 32, 4, 4).stages(16, 16).unrolls(4)},
    {"small-d128", Device::any, 128, any_rows, 2, tiles(64, 16, 4, 4).stages(8, 8).unrolls(4)},
    {"few-d512", Device::any, 512, any_rows, 2, tiles(128, 64, 4, 4).stages(16, 4).unrolls(4)},
    {"few-d576", Device::any, 576, any_rows, 2, tiles(128, 128, 4, 4).stages(4, 4).unrolls(4)},
    {"small-d576", Device::any, 576, any_rows, 2, tiles(64, 64, 4, 4).stages(8, 4).unrolls(4)},
};

// Rows of the forward kernels with 16-bit dot products, whose shared memory holds twice as many elements. None was run
// on a device that has such products. The rows for CPUs serve the tests, which compute the products otherwise.
constexpr TuningRow dot_rows[] = {
    {"cpu-dot-rows-d128", Device::cpu, 128, 8, 1, rows_kernel(8, 8, 4, 0, 2)},
    {"cpu-dot-rows-d576", Device::cpu, 576, 8, 1, rows_kernel(16, 16, 4, 0, 2)},
    {"gpu-dot-rows-d128", Device::many_registers, 128, 4, 4, rows_kernel(64, 8, 4, 0, 2)},
    {"gpu-dot-rows-d256", Device::many_registers, 256, 4, 4, rows_kernel(32, 32, 4, 0, 2)},
    {"amd-dot-rows-d576", Device::amd, 576, 4, 4, rows_kernel(32, 32, 4, 0, 2)},
    {"few-dot-rows-d128", Device::any, 128, 4, 4, rows_kernel(32, 32, 4, 0, 2)},

    {"cpu-dot-d128", Device::cpu, 128, any_rows, 1, tiles(8, 1, 4, 16).stages(16, 16).p_blocks(4).unrolls(1)},
    {"cpu-dot-d256", Device::cpu, 256, any_rows, 1, tiles(8, 4, 4, 8).stages(16, 16).p_blocks(2).unrolls(1)},
    {"cpu-dot-d576", Device::cpu, 576, any_rows, 1, tiles(8, 8, 4, 8).stages(16, 8).p_blocks(2).unrolls(1)},

    // navi21: 128 registers and 8 waves of a SIMD at D64, D128 and D256.
    {"gpu-dot-d64", Device::many_registers, 64, any_rows, 2, tiles(128, 8, 4, 4).stages(64, 32).ahead().unrolls(4)},
    {"gpu-dot-d128", Device::many_registers, 128, any_rows, 2, tiles(128, 16, 4, 4).stages(64, 32).ahead().unrolls(4)},
    {"gpu-dot-d256", Device::many_registers, 256, any_rows, 2, tiles(128, 32, 4, 4).stages(32, 16).ahead().unrolls(4)},
    {"gpu-dot-d576", Device::many_registers, 576, any_rows, 2, tiles(128, 64, 4, 4).stages(32, 8).ahead().unrolls(4)},

    // They fit 16 KiB of shared memory.
    {"few-dot-d64", Device::any, 64, any_rows, 2, tiles(128, 8, 4, 4).stages(32, 32).unrolls(4)},
    {"few-dot-d128", Device::any, 128, any_rows, 2, tiles(128, 16, 4, 4).stages(32, 32).unrolls(4)},
    {"few-dot-d256", Device::any, 256, any_rows, 2, tiles(128, 32, 4, 4).stages(32, 16).unrolls(4)},
    {"few-dot-d576", Device::any, 576, any_rows, 2, tiles(128, 64, 4, 4).stages(16, 4).unrolls(4)},
};

// Rows of the backward kernels, whose max_head_dim is the larger one of query and value.
constexpr TuningRow backward_rows[] = {
    // H200, float32: 24.4 TFLOP/s at D64, 25.8 at D128. d576 is not tuned: 17.4 at D256, 11.1 at D512.
    {"nvidia-backward-d64", Device::nvidia_driver, 64, any_rows, 1,
     tiles(256, 16, 8, 8).stages(32, 16).ahead().unrolls(16)},
    {"nvidia-backward-d128", Device::nvidia_driver, 128, any_rows, 1,
     tiles(256, 16, 8, 8).stages(16, 16).ahead().unrolls(16)},
    {"nvidia-backward-d576", Device::nvidia_driver, 576, any_rows, 1,
     tiles(256, 16, 4, 4).stages(16, 8).ahead().unrolls(8)},

    {"cpu-backward-d128", Device::cpu, 128, any_rows, 1, tiles(8, 1, 4, 16).stages(16, 16).p_blocks(4).unrolls(1)},
    {"cpu-backward-d576", Device::cpu, 576, any_rows, 1, tiles(8, 4, 4, 8).stages(16, 4).p_blocks(2).unrolls(1)},

    // The rows from here on have as few slices as spill nowhere by tools/gate, with every feature at once.
    {"gpu-backward-d128", Device::many_registers, 128, any_rows, 2,
     tiles(128, 8, 4, 4).stages(16, 16).ahead().unrolls(4)},
    {"gpu-backward-d256", Device::many_registers, 256, any_rows, 2,
     tiles(256, 16, 4, 4).stages(16, 8).ahead().unrolls(4).slices(1, 2)},
    {"gpu-backward-d576", Device::many_registers, 576, any_rows, 2,
     tiles(256, 16, 4, 4).stages(16, 8).ahead().unrolls(4).slices(2, 4)},

    {"few-backward-d64", Device::any, 64, any_rows, 2, tiles(256, 16, 4, 4).stages(8, 8).unrolls(4).slices(1, 2)},
    {"few-backward-d128", Device::any, 128, any_rows, 2, tiles(256, 16, 4, 4).stages(8, 8).unrolls(4).slices(2, 4)},
    {"few-backward-d256", Device::any, 256, any_rows, 2, tiles(256, 16, 4, 4).stages(8, 8).unrolls(4).slices(4, 8)},
    {"few-backward-d576", Device::any, 576, any_rows, 2, tiles(256, 16, 4, 4).stages(8, 8).unrolls(4).slices(9, 18)},

    {"small-backward-d128", Device::any, 128, any_rows, 2, tiles(64, 8, 4, 4).stages(8, 8).unrolls(4)},
    {"small-backward-d576", Device::any, 576, any_rows, 2, tiles(64, 8, 4, 4).stages(8, 2).unrolls(2)},
};

// Rows of the backward kernels with 16-bit dot products. None was run on a device that has such products. The rows for
// CPUs serve the tests, which compute the products otherwise: few products at a time keep them quick to compile.
constexpr TuningRow backward_dot_rows[] = {
    {"cpu-dot-backward-d128", Device::cpu, 128, any_rows, 1, tiles(8, 2, 4, 4).stages(16, 8).unrolls(1)},
    {"cpu-dot-backward-d576", Device::cpu, 576, any_rows, 1, tiles(8, 4, 4, 4).stages(8, 4).unrolls(1)},

    // navi21, dquery, registers and waves of a SIMD: D64 80 and 12, D128 120 and 8, D256 128 and 8, D576 168 and 6.
    {"gpu-dot-backward-d128", Device::many_registers, 128, any_rows, 2,
     tiles(256, 16, 4, 4).stages(32, 16).ahead().unrolls(4)},
    {"gpu-dot-backward-d256", Device::many_registers, 256, any_rows, 2,
     tiles(256, 16, 4, 4).stages(32, 8).ahead().unrolls(4).slices(1, 2)},
    {"gpu-dot-backward-d576", Device::many_registers, 576, any_rows, 2,
     tiles(256, 16, 4, 4).stages(32, 4).ahead().unrolls(4).slices(2, 4)},

    // They take as much shared memory as the rows with float32 products.
    {"few-dot-backward-d64", Device::any, 64, any_rows, 2, tiles(256, 16, 4, 4).stages(16, 16).unrolls(4).slices(1, 2)},
    {"few-dot-backward-d128", Device::any, 128, any_rows, 2,
     tiles(256, 16, 4, 4).stages(16, 16).unrolls(4).slices(2, 4)},
    {"few-dot-backward-d256", Device::any, 256, any_rows, 2,
     tiles(256, 16, 4, 4).stages(16, 16).unrolls(4).slices(4, 8)},
    {"few-dot-backward-d576", Device::any, 576, any_rows, 2,
     tiles(256, 16, 4, 4).stages(16, 16).unrolls(4).slices(9, 18)},
};
// clang-format on

bool has_dots(KernelKind kind) {
    return kind == KernelKind::tiles_dot || kind == KernelKind::rows_dot || kind == KernelKind::backward_dot;
}

bool is_backward(KernelKind kind) {
    return kind == KernelKind::backward || kind == KernelKind::backward_dot;
}

std::span<const TuningRow> table_of(KernelKind kind) {
    if (kind == KernelKind::backward) return backward_rows;
    if (kind == KernelKind::backward_dot) return backward_dot_rows;
    if (has_dots(kind)) return dot_rows;
    return rows;
}

// Returns the next more general kind that a kind of device belongs to.
Device more_general(Device device) {
    if (device == Device::nvidia_driver) return Device::nvidia;
    if (device == Device::nvidia || device == Device::amd) return Device::many_registers;
    return Device::any;
}

using Fields = NumberFields<TileNumbers>;

// The numbers that a kernel has, by their names in options.tuning.
Fields fields_of(const TileNumbers& n) {
    using N = TileNumbers;
    Fields fields = {{"threads", &N::threads}, {"lanes", &N::lanes}, {"rows", &N::rows}};
    if (!n.of_rows_kernel())
        fields.insert(
            fields.end(),
            {{"cols", &N::cols}, {"chunk", &N::chunk}, {"p_blocks", &N::p_blocks}, {"v_keys", &N::v_keys}});
    fields.insert(fields.end(), {{"prefetch", &N::prefetch}, {"unroll", &N::unroll}});
    if (!n.of_rows_kernel())
        fields.insert(fields.end(), {{"q_slices", &N::q_slices}, {"kv_slices", &N::kv_slices}});
    fields.push_back({"rolled", &N::rolled});
    return fields;
}

// Number of elements in one place of a line of shared memory (shaders/lib/lines.glsl).
uint32_t elements_of_line(KernelKind kind) {
    return has_dots(kind) ? 2 : 1;
}

// Tells why no kernel with these fields has these numbers, or "".
std::string malformed(const TileNumbers& n, const Fields& fields, KernelKind kind) {
    for (const auto& [name, at] : fields)
        if (at != &TileNumbers::prefetch && at != &TileNumbers::rolled && (n.*at == 0 || n.*at > 4096))
            return fmt::format("{} = {} is not within 1 .. 4096", name, n.*at);
    if (n.prefetch > 1 || n.rolled > 1) return "prefetch and rolled are 0 or 1";
    const uint32_t line = elements_of_line(kind);
    if (n.q_slices * n.kv_slices != 1 && !is_backward(kind)) return "only a backward has slices";
    if (n.prefetch != 0 && n.rolled != 0) return "prefetch and rolled exclude each other";
    if (n.threads % n.lanes != 0) return "threads is not a multiple of lanes";
    if (n.of_rows_kernel()) {
        if (n.rows % 4 != 0) return "rows is not a multiple of 4";
        if (n.unroll % line != 0) return "unroll is not a multiple of 2, a pair of keys";
        return n.lanes % n.unroll != 0 ? "unroll does not divide lanes" : "";
    }
    if (n.rows % 4 != 0 || n.cols % 4 != 0 || n.chunk % 4 != 0 || (n.v_keys % 4 != 0 && !is_backward(kind)))
        return "rows, cols, chunk and v_keys are multiples of 4";
    if (n.v_keys % line != 0) return "v_keys is not a multiple of 2, a pair of keys";
    if (n.cols / 4 % n.p_blocks != 0) return "p_blocks does not divide cols / 4";
    if (4 * n.p_blocks * n.lanes % n.v_keys != 0) return "v_keys does not divide 4 * p_blocks * lanes";
    for (const uint32_t lines : {n.chunk / line, n.v_keys / line})
        if (lines % std::min(n.unroll, lines) != 0)
            return line == 1 ? "unroll does not divide chunk and v_keys"
                             : "unroll does not divide the pairs of chunk and v_keys";
    return "";
}

// Tells why a backward cannot have these numbers, or "". Its sums over query rows (backward_key_value.comp) must share
// keys and rows evenly, which the forward needs not.
std::string malformed_for_sums(const TileNumbers& n, KernelKind kind) {
    const uint32_t line = elements_of_line(kind);
    if (n.tile_kv() % n.rows != 0 || n.threads % (n.tile_kv() / n.rows) != 0)
        return "a backward's invocations do not share cols * lanes keys, rows each, evenly";
    if (n.kv_slices != 1 && n.kv_slices % 2 != 0) return "kv_slices is neither 1 nor even";
    if (n.rows / line % n.p_blocks != 0)
        return line == 1 ? "p_blocks does not divide rows" : "p_blocks does not divide the pairs of rows";
    if (n.threads / n.lanes * n.p_blocks % (n.v_keys / line) != 0)
        return line == 1 ? "v_keys does not divide p_blocks * threads / lanes"
                         : "the pairs of v_keys do not divide p_blocks * threads / lanes";
    return "";
}

Result<TileNumbers> with_overrides(TileNumbers numbers, std::string_view text, KernelKind kind) {
    const Fields fields = fields_of(numbers);
    if (const auto ok = set_numbers(numbers, text, fields); !ok) return ok.failure();
    std::string why = malformed(numbers, fields, kind);
    if (why.empty() && is_backward(kind)) why = malformed_for_sums(numbers, kind);
    if (!why.empty()) return invalid("options.tuning", why);
    return numbers;
}

// Returns the choice of a row, with the caller's numbers in place of the row's. Fails if they make no kernel.
Result<TileChoice> with_tuning(const DeviceCaps& caps, const Problem& problem, const TuningRow& row,
                               KernelKind kind, std::string_view tuning) {
    TileNumbers own = row.numbers;
    own.rolled = rolled_on(caps, false);
    if (own.rolled != 0) own.prefetch = 0;  // The row may be for other devices.
    const Result<TileNumbers> numbers = with_overrides(own, tuning, kind);
    if (!numbers) return numbers.failure();
    const uint32_t pool = pool_vec4(*numbers, problem, kind);
    if (const std::string why = too_large(caps, numbers->threads, pool); !why.empty())
        return unsupported("options.tuning", fmt::format("over row {}: {}", row.name, why));
    if (!numbers->of_rows_kernel() && numbers->rolled == 0 && quirk_no_divergent_addresses(caps))
        return unsupported(own.rolled == 0 ? "" : "options.tuning",
                           "rolled = 0, which this driver's compiler does not survive");
    const bool pack = !is_backward(kind) && packs(problem, numbers->tile_q());
    if (!problem.narrow_rows(numbers->tile_q(), numbers->tile_kv(), pack) &&
        quirk_no_divergent_addresses(caps))
        return unsupported(
            "", "rows of a tile lie 2^31 bytes apart, which this driver's compiler does not survive");
    TileChoice tiles{};
    tiles.row = row.name;
    tiles.numbers = *numbers;
    tiles.pool_vec4 = pool;
    tiles.residency = row.residency;
    tiles.pack = pack;
    tiles.holds_blocks = quirk_moves_nothing_out_of_loops(caps);
    return tiles;
}

}  // namespace

// Returns the number in a name like "Turnip Adreno (TM) 740", or 0.
static uint32_t adreno_model(const DeviceCaps& caps) {
    constexpr std::string_view mark = "Adreno (TM) ";
    const size_t at = caps.name.find(mark);
    uint32_t model = 0;
    if (at != caps.name.npos)
        std::from_chars(caps.name.data() + at + mark.size(), caps.name.data() + caps.name.size(), model);
    return model;
}

// Under Turnip no property of Vulkan tells the number of registers, so the models with 192 an invocation are listed
// (Mesa's freedreno_devices.py, reg_size_vec4 of 96 and more; laptops' models, as "Adreno X1-85", are among them).
// Other models have 128 and fewer, with which the rows for 192 spill 52 to 172 (tools/gate adreno:660). Qualcomm's own
// compiler was not looked at.
static DeviceKind adreno_kind(const DeviceCaps& caps) {
    if (caps.driver_id != driver_turnip) return Device::any;
    constexpr uint32_t of_6xx[] = {615, 616, 618, 619, 620, 630, 640, 680};
    const uint32_t model = adreno_model(caps);
    const bool has_192 = model >= 725 || caps.name.find("Adreno X") != caps.name.npos ||
                         std::ranges::find(of_6xx, model) != std::end(of_6xx);
    return has_192 ? Device::adreno : Device::adreno_few;
}

DeviceKind kind_of(const DeviceCaps& caps) {
    if (caps.type == DeviceType::cpu) return Device::cpu;
    if (caps.vendor_id == 0x5143) return adreno_kind(caps);
    if (caps.driver_id == driver_honeykrisp) return Device::apple;
    if (caps.vendor_id != 0x10de) return caps.vendor_id == 0x1002 ? Device::amd : Device::any;
    return caps.driver_id == driver_nvk ? Device::nvidia : Device::nvidia_driver;
}

bool is_for(DeviceKind row, DeviceKind device) {
    for (; device != Device::any; device = more_general(device))
        if (row == device) return true;
    return row == Device::any;
}

const TuningRow* tuning_rows(KernelKind kind, size_t& count) {
    const auto table = table_of(kind);
    count = table.size();
    return table.data();
}

uint32_t multiprocessors_of(const DeviceCaps& caps) {
    if (caps.multiprocessors != 0) return caps.multiprocessors;
    if (caps.type == DeviceType::discrete) return 64;
    return caps.type == DeviceType::cpu ? 4 : 8;
}

bool packs(const Problem& p, uint32_t tile_q) {
    return p.group_size > 1 && p.seqlen_q < tile_q && uint64_t{p.group_size} * p.seqlen_q <= max_packed_rows;
}

bool is_rejected(const Options& options, std::string_view row) {
    return std::find(options.rejected_rows.begin(), options.rejected_rows.end(), row) !=
           options.rejected_rows.end();
}

// A list that is longer is no text for VkattnError.
constexpr size_t most_listed = 220;

template <class Numbers>
Result<bool> set_numbers(Numbers& numbers, std::string_view text, const NumberFields<Numbers>& fields) {
    std::vector<std::string_view> named;
    while (!text.empty()) {
        const std::string_view item = text.substr(0, text.find(','));
        text.remove_prefix(std::min(text.size(), item.size() + 1));
        const size_t equals = item.find('=');
        const auto field = std::find_if(fields.begin(), fields.end(),
                                        [&](const auto& f) { return f.first == item.substr(0, equals); });
        if (equals == item.npos || field == fields.end()) {
            std::vector<std::string_view> names;
            names.reserve(fields.size());
            for (const auto& f : fields) names.push_back(f.first);
            std::string all = fmt::format("{}", fmt::join(names, " "));
            if (all.size() > most_listed)  // a plan's description names all
                all = all.substr(0, all.rfind(' ', most_listed)) + " ...";
            return invalid("options.tuning",
                           fmt::format("'{}' is not one of {} with =number", excerpt(item), all));
        }
        if (std::find(named.begin(), named.end(), field->first) != named.end())
            return invalid("options.tuning", fmt::format("{} is named twice", field->first));
        named.push_back(field->first);
        const char* const end = item.data() + item.size();
        const auto parsed = std::from_chars(item.data() + equals + 1, end, numbers.*field->second);
        if (parsed.ec != std::errc{} || parsed.ptr != end)
            return invalid("options.tuning", fmt::format("'{}' has no whole number", excerpt(item)));
    }
    return true;
}
template <class Numbers>
std::string text_of(const Numbers& numbers, const NumberFields<Numbers>& fields) {
    std::string text;
    for (const auto& [name, at] : fields)
        text += fmt::format("{}{}={}", text.empty() ? "" : ",", name, numbers.*at);
    return text;
}

#define OF(Numbers)                                                                              \
    template Result<bool> set_numbers(Numbers&, std::string_view, const NumberFields<Numbers>&); \
    template std::string text_of(const Numbers&, const NumberFields<Numbers>&);
OF(TileNumbers)
OF(MatrixNumbers)
OF(BackwardMatrixNumbers)
#undef OF

std::string TileChoice::tuning() const {
    return matrix ? to_text(*matrix) : backward_matrix ? to_text(*backward_matrix) : to_text(numbers);
}

// Leaves out slices where there are none, because nearly no row has them.
std::string to_text(const TileNumbers& n) {
    Fields fields = fields_of(n);
    std::erase_if(fields, [&](const auto& field) {
        return (field.second == &TileNumbers::q_slices || field.second == &TileNumbers::kv_slices) &&
               n.*field.second == 1;
    });
    return text_of(n, fields);
}

std::string too_large(const DeviceCaps& caps, uint32_t threads, uint64_t pool_vec4) {
    const uint32_t most = caps.threads_up_to(threads);
    if (threads > most) return fmt::format("{} invocations, the device has {}", threads, most);
    if (pool_vec4 * 16 <= caps.max_shared_bytes) return "";
    return fmt::format("{} bytes of shared memory, the device has {}", pool_vec4 * 16, caps.max_shared_bytes);
}

uint32_t kept_kv_vec4(const TileNumbers& n, const Problem& p) {
    const uint32_t lanes = key_lanes(n);
    if (n.kv_slices == 1) return POOL_V_STRIDE(p.head_dim_qk, lanes) + POOL_V_STRIDE(p.head_dim_v, lanes);
    return 2 * POOL_V_STRIDE(std::max(p.head_dim_qk, p.head_dim_v), lanes * (n.kv_slices / 2));
}

// If a caller's numbers make it exceed 32 bits, the result is UINT32_MAX, which no device has.
uint32_t pool_vec4(const TileNumbers& n, const Problem& problem, KernelKind kind) {
    const auto counted = [](uint64_t vec4) {
        return static_cast<uint32_t>(std::min<uint64_t>(vec4, std::numeric_limits<uint32_t>::max()));
    };
    const uint64_t threads = n.threads, lanes = n.lanes, v_stride = POOL_V_STRIDE(problem.head_dim_v, lanes);
    if (n.of_rows_kernel()) {
        const uint64_t row_vecs = n.rows / 4;
        return counted(std::max(threads * (n.lanes + 1) * row_vecs + 2 * threads * row_vecs,
                                threads / n.lanes * v_stride));
    }
    const uint64_t q_stride = POOL_STRIDE(n.tile_q()), k_stride = POOL_STRIDE(n.tile_kv());
    const uint64_t line = elements_of_line(kind), scores = n.chunk / line * (q_stride + k_stride);
    const uint64_t maxima = threads * n.rows / 4, p = q_stride * 4 * n.p_blocks * n.lanes / line;
    if (!is_backward(kind)) return counted(std::max({scores, maxima, p + n.v_keys / line * v_stride}));
    const uint64_t qk = problem.head_dim_qk, slots = threads / n.lanes * n.p_blocks;
    const uint64_t kv_stride = kept_kv_vec4(n, problem) / n.kv_slices;
    const uint64_t maps = std::max({scores, maxima, threads * n.cols / 4,
                                    p + n.v_keys / line * POOL_SLICE_STRIDE(qk, lanes, n.q_slices),
                                    2 * slots * k_stride + n.v_keys / line * kv_stride});
    return counted(maps + n.tile_q());  // tile_q vec4 hold the rows' statistics.
}

void set_nonfinite_rules(TileChoice& tiles, const DeviceCaps& caps, const Problem& problem,
                         const Options& options) {
    tiles.isolates_rows = options.batch_invariant && hides_from_some_rows(problem);
    tiles.exp2_loses_nan = quirk_exp2_loses_nan(caps);
}

std::string too_many_rows(uint64_t most, uint32_t group_size) {
    const std::string group =
        group_size == 1
            ? ""
            : fmt::format(", those of the {} query heads of a key head counted together", group_size);
    return fmt::format("it is for at most {} query rows here{}", most, group);
}

// Returns the largest tile_q of this kind of device's tuning rows for at most so many head dims.
static uint32_t most_tile_q(DeviceKind kind, uint32_t max_head_dim) {
    uint32_t most = 0;
    for (const TuningRow& row : rows)
        if (row.device == kind && row.max_head_dim <= max_head_dim)
            most = std::max(most, row.numbers.tile_q());
    return most;
}

// True if the device's own tuning rows spill registers for this problem. The rows for any device, which spill none, are
// taken then. By tools/gate these spill:
//   Turnip (adreno:740, adreno:618)  about 50, with a softcap and a float mask; without 16-bit storage (adreno:618) up
//                                    to 30, with operands of several types and a float mask
//   Honeykrisp (apple:m1)            up to 33, in rows of 8 columns, if float32 is loaded one by one or if a group's
//                                    heads share tiles. With batch_invariant the number of rows must not decide that.
static bool spills_own_rows(const DeviceCaps& caps, const Problem& p, const Options& options) {
    const DeviceKind kind = kind_of(caps);
    if (kind == Device::adreno)
        return p.mask == VKATTN_MASK_FLOAT && (p.softcap > 0 || (p.has_mixed_types() && !caps.storage_16bit));
    if (kind != Device::apple || p.head_dim_v > 128) return false;
    const bool float32_by_one = p.element_bytes == 4 && (p.alignment_bytes % 16 != 0 ||
                                                         p.head_dim_qk % 4 != 0 || p.head_dim_v % 4 != 0);
    return float32_by_one || (options.batch_invariant ? p.group_size > 1 : packs(p, most_tile_q(kind, 128)));
}

Result<TileChoice> choose_tiles(const DeviceCaps& caps, const Problem& problem, const Options& options,
                                KernelKind kind) {
    std::string why;
    bool few_enough = false;
    uint64_t most_rows = 0;  // the largest max_rows of this device's tuning rows
    // If batch_invariant is asked for, the numbers must not depend on how many rows there are: they order a row's sums.
    const uint64_t rows_of_kv_head =
        options.batch_invariant ? any_rows : uint64_t{problem.seqlen_q} * problem.group_size;
    const uint32_t head_dim =
        is_backward(kind) ? std::max(problem.head_dim_qk, problem.head_dim_v) : problem.head_dim_v;
    const Device device = spills_own_rows(caps, problem, options) ? Device::any : kind_of(caps);
    for (const TuningRow& row : table_of(kind)) {
        const bool of_rows = kind == KernelKind::rows || kind == KernelKind::rows_dot;
        if (row.numbers.of_rows_kernel() != of_rows) continue;
        if (!is_for(row.device, device)) continue;
        most_rows = std::max<uint64_t>(most_rows, row.max_rows);
        if (rows_of_kv_head > row.max_rows) continue;
        few_enough = true;
        if (head_dim > row.max_head_dim) continue;
        if (is_rejected(options, row.name)) {
            why = fmt::format("row {}: the driver could not build its pipeline", row.name);
            continue;
        }
        why = too_large(caps, row.numbers.threads, pool_vec4(row.numbers, problem, kind));
        if (why.empty()) {
            Result<TileChoice> tiles = with_tuning(caps, problem, row, kind, options.tuning);
            if (tiles) set_nonfinite_rules(*tiles, caps, problem, options);
            if (tiles) tiles->dot = has_dots(kind);
            return tiles;
        }
        why = fmt::format("row {}: {}", row.name, why);
    }
    if (why.empty()) {
        return unsupported(is_named(options) ? "options.kernel" : "",
                           few_enough ? "on this device it has too few registers for such head dims"
                                      : too_many_rows(most_rows, problem.group_size));
    }
    return unsupported("", "no tile shape fits this device: " + why);
}

}  // namespace vkattn::core
