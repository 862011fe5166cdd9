// Which kernel, tuning row, numbers and modules the planner chooses, or why it refuses, against
// tests/golden/choices.txt: for the problems that people have most on each device of tests/profiles, after a probe of
// its matrix units, and for each thing that a choice hangs on. A wrong choice runs, but slowly, so that nothing else
// would show it.
#include <doctest/doctest.h>

#include <fmt/format.h>

#include "gate/layouts.hpp"
#include "plan/matrix.hpp"
#include "plan_flaws.hpp"
#include "plan_golden.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Kernel;

namespace {

constexpr auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;
const std::string folder = VKATTN_TESTS_DIR;

// A device as the runtime plans for it: with its matrix units and what the probe finds of them. NVIDIA's own driver has
// the layout that NVK's sources have (seen on an H200).
DeviceCaps as_probed(const std::string& name) {
    const DeviceCaps caps = load_with_matrix_units(folder + "/profiles/" + name + ".txt");
    if (caps.driver_id == core::driver_nvidia) return probed(caps);
    return with_known_layouts(caps).back().caps;
}

VkattnProblem given(VkattnDtype dtype, HeadDims dims, const Shape& shape, uint32_t alignment = 16) {
    return make_problem(dims, shape, Layout::contiguous, alignment, dtype);
}

VkattnProblem half(HeadDims dims, const Shape& shape) {
    return given(f16, dims, shape);
}

VkattnProblem biased(const VkattnProblem& p) {
    return masked(p, VKATTN_MASK_FLOAT);
}
VkattnProblem hidden(const VkattnProblem& p) {
    return masked(p, VKATTN_MASK_BOOL);
}
VkattnProblem capped(VkattnProblem p) {
    p.softcap = 30;
    return p;
}

Options rounding(Options o, VkattnPrecision precision = VKATTN_PRECISION_FLOAT16) {
    o.precision = precision;
    return o;
}
Options invariant(Options o = {}) {
    o.batch_invariant = true;
    return o;
}

std::string choice_of(const DeviceCaps& caps, const VkattnProblem& asked, bool backward) {
    const Problem p = resolved(asked);
    const auto plan = backward ? make_plan(caps, p, make_backward(p), {}) : make_plan(caps, p, {});
    return plan ? plan->kernel + " " + plan->tuning_row : "none: " + plan.failure().message;
}

// The problems that people have most.
void add_usual(std::vector<std::string>& lines) {
    for (const Profile& device : profiles()) {
        const DeviceCaps caps = as_probed(device.name);
        const auto add = [&](const char* name, uint32_t dim, const Shape& shape, bool backward) {
            lines.push_back(fmt::format("{} {}-d{}: {}", device.name, name, dim,
                                        choice_of(caps, half({dim, dim}, shape), backward)));
        };
        for (const uint32_t dim : {64u, 128u}) add("forward", dim, {1, 16, 16, 4096, 4096, true}, false);
        for (const uint32_t dim : {64u, 128u}) add("backward", dim, {1, 16, 16, 4096, 4096, true}, true);
        for (const uint32_t dim : {64u, 128u}) add("decode", dim, {1, 32, 8, 1, 8192}, false);
        add("decode-group8", 128, {1, 64, 8, 1, 8192}, false);
    }
}

// A list of choices on one device. Each plan is sound.
class Choices {
  public:
    Choices(std::vector<std::string>& lines, std::string name, DeviceCaps caps)
        : lines_(lines), name_(std::move(name)), caps_(std::move(caps)) {}

    Choices& forward(const std::string& what, const VkattnProblem& asked, const Options& o = {}) {
        const Problem p = resolved(asked);
        const auto plan = make_plan(caps_, p, o);
        if (plan) CHECK_EQ(flaw_of(caps_, p, *plan, o), "");
        return add(what, plan, o);
    }
    Choices& backward(const std::string& what, const VkattnProblem& asked, const Options& o = {}) {
        const Problem p = resolved(asked);
        const core::Backward b = make_backward(p);
        const auto plan = make_plan(caps_, p, b, o);
        if (plan) CHECK_EQ(flaw_of(caps_, p, b, *plan, o), "");
        return add("backward " + what, plan, o);
    }
    Choices& both(const std::string& what, const VkattnProblem& asked, const Options& o = {}) {
        return forward(what, asked, o).backward(what, asked, o);
    }

  private:
    Choices& add(const std::string& what, const core::Result<Plan>& plan, const Options& o) {
        const std::string where = fmt::format("{} | {}: ", name_, what);
        if (!plan) {
            const core::Failure& why = plan.failure();
            lines_.push_back(where + fmt::format("{} {}: {}", int{why.status}, why.field, why.message));
            return *this;
        }
        // All numbers where some were asked for, else those that are no row's own.
        const auto numbers = values_in(plan->tuning);
        std::string text = fmt::format("{} {}", plan->kernel, plan->tuning_row);
        for (const char* name : {"move", "turned", "running"})
            if (numbers.contains(name) && o.tuning.empty())
                text += fmt::format(" {}={}", name, numbers.at(name));
        if (!o.tuning.empty()) text += " " + plan->tuning;
        for (const core::Pipeline& pipeline : plan->pipelines)
            if (pipeline.of_tuning_row || kind_of(pipeline) == Kind::classes)
                text += fmt::format(" {}", name_of(pipeline));
        lines_.push_back(where + text);
        return *this;
    }

    std::vector<std::string>& lines_;
    std::string name_;
    DeviceCaps caps_;
};

const Shape many{1, 2, 2, 300, 304}, few{1, 2, 2, 1, 300}, group{1, 4, 1, 1, 300},
    gqa{2, 4, 2, 300, 500, true};

// Matrix units: on what the device reports of them, and what a probe finds.
void add_matrix(std::vector<std::string>& lines) {
    const Options matrix = kernel("matrix"), khr = kernel("matrix_khr");
    for (const Profile& device : matrix_devices())
        for (const auto& [state, caps] : {std::pair{"unknown layout", device.caps},
                                          {"known layout", probed(device.caps)},
                                          {"as RDNA3", probed_turned(device.caps, true)}}) {
            Choices on(lines, device.name + " " + state, caps);
            on.forward("d128", half(d128, gqa), matrix).forward("d576", half({576, 512}, gqa), matrix);
            on.forward("khr", half(d64, gqa), khr).forward("bf16", given(bf16, d64, gqa));
            on.forward("rounded", given(f32, d64, gqa), rounding({}));
            on.forward("rounded khr", given(f32, d64, gqa), rounding(khr));
        }
    DeviceCaps caps = matrix_device("lavapipe");
    Choices(lines, "CPU", caps).forward("auto", half(d64, many)).forward("by name", half(d64, many), matrix);
    caps.type = core::DeviceType::integrated;
    Choices(lines, "CPU's units on a GPU", caps).forward("auto", half(d64, many));
    caps = matrix_device("lavapipe");
    caps.min_subgroup_size = caps.max_subgroup_size = caps.subgroup_size = 16;  // quirk_wrong_matrices
    Choices(lines, "wrong matrices", caps).forward("by name", half(d64, many), matrix);
    caps = matrix_device("amd_navi31");
    caps.subgroup_size_control = false;
    Choices(lines, "no subgroup size control", caps).forward("by name", half(d64, many), matrix);
    caps.max_subgroup_size = caps.min_subgroup_size;
    Choices(lines, "one subgroup size", caps).forward("by name", half(d64, many), matrix);
    caps.full_subgroups = false;
    Choices(lines, "no full subgroups", caps)
        .forward("by name", half(d64, many), matrix)
        .forward("auto", half(d64, many));
    Choices(lines, "no units", profile("intel_skl"))
        .forward("auto", half(d64, many))
        .forward("by name", half(d64, many), matrix);
}

void add_h200(std::vector<std::string>& lines) {
    const VkattnProblem p = half(d64, many), wide = half(d128, many), full = given(f32, d64, many);
    Choices on(lines, "H200", probed(matrix_device("nvidia_h200")));
    for (const uint32_t dim : {64u, 72u, 80u, 88u, 128u, 136u, 256u})
        on.forward(fmt::format("d{}", dim), half({dim, dim}, many));
    for (const HeadDims dims : {HeadDims{128, 64}, HeadDims{111, 128}, HeadDims{128, 111}})
        on.forward(fmt::format("d{}-{}", dims.qk, dims.v), half(dims, many));
    on.forward("one row", half(d64, few)).forward("float32 by name", full, kernel("matrix"));
    on.forward("bf16 d128", given(bf16, d128, many)).forward("unaligned", given(f16, d128, many, 8));
    on.forward("softcap", capped(wide)).forward("khr", wide, kernel("matrix_khr"));
    on.forward("invariant", wide, invariant()).forward("float32 d128", given(f32, d128, many), rounding({}));
    for (const uint32_t rows : {1u, 17u, 300u})
        on.forward(fmt::format("invariant, {} rows", rows), half(d64, {1, 8, 2, rows, 300}), invariant());
    for (const uint32_t dim : {64u, 111u, 128u, 256u})
        on.forward(fmt::format("float mask d{}", dim), biased(half({dim, dim}, many)));
    for (const uint32_t keys : {304u, 300u, 302u, 301u})
        on.forward(fmt::format("float mask, {} keys", keys), biased(half(d64, {1, 2, 2, 300, keys})));
    on.forward("bool mask", hidden(p)).forward("bool mask d128", hidden(wide));
    on.forward("bool mask khr", hidden(p), kernel("matrix_khr"));
    on.forward("float mask bf16", biased(given(bf16, d64, many)))
        .forward("float mask softcap", capped(biased(p)));
    on.forward("float mask invariant", biased(p), invariant());
    on.forward("float mask khr", biased(p), kernel("matrix_khr"));
    on.forward("float mask, float32", biased(full), rounding({}));
    for (const char* numbers : {"move=1", "subgroups=2,tile_kv=32", "slice=4294967295", "slice=4",
                                "tile_kv=24", "move=9", "chunk=16", "running=1,halves=2", "rows=4",
                                "subgroups=0", "subgroups=40", "tile_kv=512", "turned=2"})
        on.forward(numbers, p, tuning(numbers, "matrix"));
    on.forward("bool mask move=1,running=1", hidden(p), tuning("move=1,running=1", "matrix"));
    on.forward("bool mask khr running=0", hidden(p), tuning("running=0", "matrix_khr"));
    on.forward("invariant running=0", p, invariant(tuning("running=0", "matrix")));
    Options rejected;
    rejected.rejected_rows = {"nvidia-matrix-d64"};
    on.forward("rejected row", p, rejected);
}

// float32 that is rounded: few rows may keep float32 and what is named does, all else is refused.
void add_precision(std::vector<std::string>& lines) {
    const VkattnProblem p = given(f32, d64, many), one = given(f32, d64, few);
    for (const auto& [name, caps] : {std::pair{"H200 rounds", matrix_device("nvidia_h200")},
                                     {"no units, rounds", profile("intel_skl")},
                                     {"RDNA3 rounds", matrix_device("amd_navi31")}}) {
        Choices on(lines, name, caps);
        on.both("float16", p, rounding({})).both("bfloat16", p, rounding({}, VKATTN_PRECISION_BFLOAT16));
        on.forward("one row", one, rounding({})).forward("one row, invariant", one, rounding(invariant()));
        for (const char* by_name : {"tiles", "materialized"})
            on.forward(by_name, p, rounding(kernel(by_name)));
        for (const char* move : {"move=1", "move=2"}) on.forward(move, p, rounding(tuning(move, "matrix")));
        on.both("storage type", half(d64, many), rounding({}));
        on.forward("another type", half(d64, many), rounding({}, VKATTN_PRECISION_BFLOAT16));
        on.forward("unknown", p, rounding({}, static_cast<VkattnPrecision>(3)));
        // No kernel that rounds has so many head dims, and none stands in for it.
        on.backward("d512", given(f32, {512, 512}, many), rounding({})).backward("float32", p);
    }
}

// AMD's rows follow the registers of a SIMD; products are turned where P stays in registers only so.
void add_amd(std::vector<std::string>& lines) {
    DeviceCaps unknown = as_probed("amd_navi31");  // whose driver lacks the extension
    unknown.simd_registers = 0;
    for (const auto& [name, caps] : {std::pair{"Navi 31", as_probed("amd_navi31")},
                                     {"Phoenix", as_probed("amd_phoenix")},
                                     {"Strix", as_probed("amd_strix1")},
                                     {"Navi 31 without registers", unknown},
                                     {"RDNA4", as_probed("amd_gfx1201")}}) {
        Choices on(lines, name, caps);
        for (const HeadDims dims : {d64, d128})
            on.forward(fmt::format("d{}", dims.qk), half(dims, many))
                .forward(fmt::format("bool mask d{}", dims.qk), hidden(half(dims, many)));
        on.forward("float mask", biased(half(d128, many))).forward("softcap", capped(half(d128, many)));
        on.forward("invariant", half(d128, many), invariant()).forward("d125", half({125, 128}, many));
    }
    const VkattnProblem p = half(d128, many);
    Choices on(lines, "RDNA3 turned", probed_turned(matrix_device("amd_navi31"), true));
    on.forward("auto", p).forward("khr", p, kernel("matrix_khr"));
    for (const char* numbers : {"turned=0,halves=1,subgroups=4,q_held=112", "move=3"})
        on.forward(numbers, p, tuning(numbers, "matrix"));
    on.forward("khr turned=1", p, tuning("turned=1", "matrix_khr"));  // once it was turned, without a layout
}

// 16-bit dot products.
void add_dot(std::vector<std::string>& lines) {
    const Options dot = kernel("tiles_dot");
    DeviceCaps cpu = profile("lavapipe");
    cpu.storage_16bit = cpu.dot_float16 = cpu.dot_bfloat16 = true;
    DeviceCaps no_storage = profile("amd_navi21");
    no_storage.storage_16bit = false;  // which their modules need
    for (const auto& [name, caps] : {std::pair{"RDNA2", profile("amd_navi21")},
                                     {"RDNA4 before a probe", matrix_device("amd_gfx1201")},
                                     {"CPU with dot products", cpu},
                                     {"dot products without 16-bit storage", no_storage},
                                     {"no dot products", profile("nvidia_h200")}}) {
        Choices on(lines, name, caps);
        for (const VkattnDtype dtype : {f16, bf16, f32}) {
            const std::string type(core::name_of(dtype));
            on.both(type, given(dtype, d128, many)).both(type + " by name", given(dtype, d128, many), dot);
            on.both(type + " one row", given(dtype, d128, group));
        }
        on.forward("rounded by name", given(f32, d128, many), rounding(dot));
        on.backward("float mask", biased(half(d128, many))).both("d320", half({320, 320}, many));
    }
    Choices on(lines, "RDNA2", profile("amd_navi21"));
    for (const char* numbers : {"chunk=8,unroll=8,v_keys=8", "chunk=24,unroll=8"})
        on.forward(numbers, half(d128, many), tuning(numbers, "tiles_dot"));
    on.forward("rows unroll=1", half(d128, group), tuning("unroll=1", "rows_dot"));
    on.backward("one key", half(d64, {1, 1, 1, 300, 1}))
        .backward("one key by name", half(d64, {1, 1, 1, 300, 1}), dot);
    for (const char* numbers :
         {"threads=32,lanes=4,rows=4,cols=8,p_blocks=2,v_keys=2,chunk=8,unroll=1", "v_keys=1,unroll=1",
          "threads=16,lanes=1,rows=4,cols=16,p_blocks=4,v_keys=4,chunk=8,unroll=1",
          "threads=32,lanes=16,rows=4,cols=4,p_blocks=1,v_keys=8,chunk=8,unroll=1"})
        on.backward(numbers, half(d128, many), tuning(numbers, "tiles_dot"));
    // A driver that miscompiles them, or a device that computes otherwise, leaves the kernel without them. The
    // forward's self-test, which has subnormal numbers, counts for both.
    for (const auto& [backward, name] :
         {std::pair{true, "tiles_dot"}, {false, "tiles_dot"}, {false, "rows_dot"}}) {
        DeviceCaps failed = profile("amd_navi21");
        failed.verdicts = {{backward, name, f16, f16, "out[0] is 2 instead of 1"}};
        Choices(lines, fmt::format("RDNA2, {}{} failed", backward ? "backward " : "", name), failed)
            .both("auto", half(d128, many))
            .forward("one row", half(d128, group));
    }
}

// Where a compiler would spill a device's own rows, rows for any device are taken; some rows are for one driver.
void add_drivers(std::vector<std::string>& lines) {
    const Options tiles = kernel("tiles");
    const Shape small = square(1, 1, 100);
    Choices apple(lines, "M1", profile("apple_m1"));
    for (const auto& [dims, alignment, dtype] : {std::tuple{d64, 16u, f32},
                                                 {d64, 4u, f32},
                                                 {HeadDims{61, 64}, 16u, f32},
                                                 {HeadDims{64, 126}, 16u, f32},
                                                 {HeadDims{61, 61}, 2u, f16},
                                                 {d128, 2u, bf16},
                                                 {HeadDims{129, 129}, 4u, f32}})
        apple.forward(fmt::format("{} d{}-{} alignment {}", core::name_of(dtype), dims.qk, dims.v, alignment),
                      given(dtype, dims, small, alignment), tiles);
    // Heads that share tiles, or may: batch-invariant, the row must not depend on how many query rows there are.
    for (const uint32_t rows : {63u, 64u})
        apple.forward(fmt::format("{} rows", rows), given(f32, d64, {1, 4, 1, rows, 300}), tiles)
            .forward(fmt::format("{} rows, invariant", rows), given(f32, d64, {1, 4, 1, rows, 300}),
                     invariant(tiles));
    const VkattnProblem bias = biased(given(f32, d64, small, 4));
    Choices(lines, "Adreno", profile("adreno_740"))
        .forward("float mask", bias, tiles)
        .forward("float mask, softcap", capped(bias), tiles);
    const VkattnProblem p = given(f32, d128, {1, 2, 2, 97, 97});
    Choices(lines, "CPU, rows by name", profile("lavapipe"))
        .forward("many rows", given(f32, d64, many), kernel("rows"))
        .forward("one row, invariant", given(f32, d64, few), invariant(kernel("rows")));
    Choices(lines, "NVK", matrix_device("nvk_ampere"))
        .backward("float32", p, rounding(kernel("matrix")))
        .backward("float32, mask", hidden(p), rounding(kernel("matrix")))
        .backward("float16", half(d128, {1, 2, 2, 97, 97}), kernel("matrix"));
}

// Builds that VKATTN_KERNELS leaves kernels out of: the planner refuses what needs them by their name, and does without
// those that only save work.
void add_missing(std::vector<std::string>& lines) {
    const Shape long_many{1, 2, 1, 512, 16384}, long_one{1, 2, 1, 1, 16384};
    const DeviceCaps all = matrix_device("nvidia_h200");
    const auto choices = [&](Kernel missing, const DeviceCaps& caps) {
        std::vector<std::string> made;
        Choices on(made, fmt::format("without {}", core::info_of(missing).name), caps);
        on.both("auto", half(d64, long_many)).forward("one row", half(d64, long_one));
        for (const char* by_name : {"tiles", "matrix"})
            on.both(by_name, half(d64, long_many), kernel(by_name));
        on.both("materialized", given(f32, d64, long_many), kernel("materialized"));
        Options parts;
        parts.num_splits = 4;
        on.forward("parts", half(d64, long_one), parts);
        on.forward("mask", hidden(given(f32, d64, {1, 2, 1, 4096, 4096})));
        return made;
    };
    for (const Kernel missing :
         {Kernel::forward_matrix, Kernel::forward_rows, Kernel::forward_tiles, Kernel::materialized_softmax,
          Kernel::backward_key_value, Kernel::backward_matrix_query, Kernel::combine, Kernel::mask_classes}) {
        DeviceCaps caps = all;
        caps.missing_kernels = 1u << static_cast<uint32_t>(missing);
        const std::vector<std::string> with = choices(missing, all), without = choices(missing, caps);
        for (size_t i = 0; i < with.size(); i++)
            if (without[i] != with[i]) lines.push_back(without[i]);
    }
}

// Names and tunings that are refused, and some that are like them and are not.
void add_refusals(std::vector<std::string>& lines) {
    const VkattnProblem p = given(f32, d64, {1, 2, 1, 97, 97}, 4), one = given(f32, d64, {1, 2, 1, 1, 97}, 4);
    Choices on(lines, "refusals", profile("nvidia_h200"));
    for (const char* name :
         {"tile", "Tiles", "tiles ", "materialised", "AUTO", "0", " ", "", "auto", "tiles"})
        on.both(fmt::format("'{}'", name), p, kernel(name));
    Options parts;
    parts.num_splits = 2;
    on.backward("rows", p, kernel("rows")).backward("2 parts", p, parts);
    for (const char* name : {"auto", "tiles"}) {
        parts.kernel = name;
        parts.num_splits = 2;
        on.forward(fmt::format("2 parts, invariant {}", name), p, invariant(parts));
        parts.num_splits = 1;
        on.backward(fmt::format("1 part, invariant {}", name), p, invariant(parts));
    }
    for (const std::string text : {"threads",
                                   "256",
                                   "=5",
                                   "speed=3",
                                   "THREADS=64",
                                   "threads =64",
                                   " threads=64",
                                   "threads=",
                                   "threads=abc",
                                   "threads=8x",
                                   "threads=8 ",
                                   "threads=-8",
                                   "threads=+8",
                                   "threads=1.5",
                                   "threads=0x40",
                                   "threads==8",
                                   "threads=4294967296",
                                   "threads=8;lanes=1",
                                   "threads=64,lanes=1,threads=64",
                                   ",",
                                   ",prefetch=0",
                                   "prefetch=0,,prefetch=1",
                                   "threads=4097",
                                   "chunk=4294967292",
                                   "prefetch=2",
                                   "rolled=2",
                                   "prefetch=1,rolled=1",
                                   "threads=0",
                                   "lanes=0",
                                   "rows=0",
                                   "cols=0",
                                   "chunk=0",
                                   "p_blocks=0",
                                   "v_keys=0",
                                   "unroll=0"}) {
        for (const char* name : {"auto", "tiles", "materialized"})
            on.forward(fmt::format("{} '{}'", name, text), p, tuning(text, name));
        on.backward(fmt::format("'{}'", text), p, tuning(text));
    }
    // Numbers of one kernel for the other: "cols=0" would make them the other kernel's.
    for (const char* text :
         {"cols=4", "rows=6", "unroll=3", "rolled=2", "lanes=7", "threads=32,lanes=4,rows=4,unroll=1"})
        on.forward(fmt::format("rows {}", text), one, tuning(text, "rows"));
    on.forward("cols=0,unroll=1", one, tuning("cols=0,unroll=1", "tiles"))
        .forward("cols=8", one, tuning("cols=8"));
    // Addresses that differ between invocations, which a compiler does not survive: quirk_no_divergent_addresses.
    DeviceCaps caps = profile("lavapipe");
    caps.subgroup_size = 16;
    Choices quirk(lines, "CPU of 16 lanes, rolled=0", caps);
    for (const char* name : {"auto", "tiles", "materialized"}) quirk.both(name, p, tuning("rolled=0", name));
    quirk.forward("rows", one, tuning("rolled=0", "rows"));
    // A device may lack what a case of another device names. Then conformance skips the case.
    const VkattnProblem units = half(d64, {1, 2, 2, 97, 97});
    Choices amd(lines, "RDNA3", matrix_device("amd_navi31"));
    for (const char* text : {"move=0", "move=1", "turned=1", "halves=2"})
        amd.forward(text, units, tuning(text, "matrix"));
    amd.forward("mask running=0", hidden(units), tuning("running=0", "matrix"));
    Choices turned(lines, "RDNA3 turned", probed_turned(matrix_device("amd_navi31"), true));
    for (const char* text : {"q_v_staged=32", "q_v_staged=40", "turned=0,q_v_staged=32"})
        turned.backward(text, units, tuning(text, "matrix"));
    turned.backward("khr turned=1", units, tuning("turned=1", "matrix_khr"));
}

// Classes of mask tiles: where a mask is worth them, within the limits of scratch, cost and grid, and where the
// accumulators of a cut loop leave them room.
void add_classes(std::vector<std::string>& lines) {
    Choices on(lines, "classes", profile("nvidia_h200"));
    const auto with = [](const Shape& shape, VkattnMaskType mask, MaskShape of) {
        return masked(given(f32, d64, shape, 4), mask, of);
    };
    const Shape large{2, 8, 8, 4096, 4096};
    const Options tiles = kernel("tiles");
    using M = MaskShape;
    for (const auto& [what, shape, of] : {std::tuple{"whole", large, M::whole},
                                          {"shared", large, M::shared},
                                          {"of keys", Shape{8, 8, 1, 1, 65536}, M::keys_of_batch},
                                          {"small", Shape{2, 8, 8, 64, 64}, M::whole},
                                          {"70,000 batches", Shape{70000, 8, 8, 1024, 1024}, M::whole},
                                          {"wide grid", Shape{1, 1, 1, 128, 1u << 29}, M::whole}})
        on.forward(what, with(shape, VKATTN_MASK_BOOL, of), tiles);
    const VkattnProblem whole = with(large, VKATTN_MASK_BOOL, M::whole);
    on.forward("low limit", whole, limited(1'000'000'000, 0, "tiles"));
    on.forward("scratch", whole).forward("little scratch", whole, limited(0, 512));
    const VkattnProblem p = with({2, 4, 4, 2048, 2048}, VKATTN_MASK_FLOAT, M::all_heads);
    on.backward("scratch", p).backward("little scratch", p, limited(0, 1024));
    on.backward("small", with({2, 4, 4, 64, 64}, VKATTN_MASK_FLOAT, M::all_heads));
    const VkattnProblem one = with({1, 1, 1, 2048, 2048}, VKATTN_MASK_FLOAT, M::all_heads);
    const Options cut = limited(100'000'000);
    const uint64_t all =
        planned(profile("nvidia_h200"), resolved(one), make_backward(resolved(one)), cut).scratch_bytes;
    for (const uint64_t less : {0u, 256u})
        on.backward(fmt::format("cut, {} bytes less", less), one, limited(100'000'000, all - less));
}

// Why a plan has not the other kernels.
void add_reasons(std::vector<std::string>& lines) {
    const Problem many_rows = resolved(given(f32, d64, {1, 2, 1, 97, 97})),
                  one_row = resolved(given(f32, d64, {1, 2, 1, 1, 97}));
    const auto add = [&](const char* name, const char* device, const Problem& p, const Options& o) {
        const auto plan = make_plan(matrix_device(device), p, o);
        REQUIRE(plan);
        for (const core::Refusal& r : plan->refused)
            lines.push_back(fmt::format("{} {}, not {}: {}", name, plan->kernel, r.kernel, r.reason));
    };
    add("CPU", "lavapipe", many_rows, {});
    add("CPU, one row", "lavapipe", one_row, {});
    add("CPU, one row by name", "lavapipe", one_row, kernel("materialized"));
    add("CPU, one row invariant", "lavapipe", one_row, invariant());
    add("H200 rounds", "nvidia_h200", many_rows, rounding({}));
}

}  // namespace

TEST_CASE("choices: kernels, rows, numbers and modules are what they were") {
    std::vector<std::string> lines;
    for (const auto add : {add_usual, add_matrix, add_h200, add_precision, add_amd, add_dot, add_drivers,
                           add_missing, add_refusals, add_classes, add_reasons})
        add(lines);
    check_golden("choices.txt", lines);
}

TEST_CASE("choices: what a device has units or dot products for does without them nowhere") {
    std::vector<std::string> lines;
    add_usual(lines);
    for (const std::string& line : lines) {
        CAPTURE(line);
        const std::string device = line.substr(0, line.find(' ')), choice = line.substr(line.find(": ") + 2);
        const DeviceCaps caps = as_probed(device);
        if (caps.type == core::DeviceType::cpu || choice.starts_with("none")) continue;
        const auto has = [&](const char* text) { return line.find(text) != std::string::npos; };
        const bool decodes = has(" decode"),
                   of_group8 = has(" decode-group8");  // beyond the rows kernels of some
        // Matrix backwards of 128 head dims have rows for NVIDIA and AMD only: others have too few registers.
        const bool has_rows =
            !has(" backward") || !has("-d128:") || caps.vendor_id == 0x10de || caps.vendor_id == 0x1002;
        if (!caps.matrices.empty() && !decodes && has_rows) CHECK(choice.starts_with("matrix "));
        if (caps.dot_float16 && decodes && !of_group8) CHECK(choice.starts_with("rows_dot "));
        if (caps.dot_float16 && caps.matrices.empty() && !decodes) CHECK(choice.starts_with("tiles_dot "));
    }
}

TEST_CASE("choices: registers are counted as of 32 invocations, whoever counts them") {
    CHECK_EQ(core::simd_registers_of(core::driver_radv, 768), 1536);
    constexpr uint32_t amd_open_source = 2;  // VkDriverId
    CHECK_EQ(core::simd_registers_of(amd_open_source, 1536), 1536);
    CHECK_EQ(core::simd_registers_of(core::driver_radv, 0), 0);
    CHECK_EQ(as_probed("amd_navi31").simd_registers, 1536);
    CHECK_EQ(as_probed("amd_phoenix").simd_registers, 1024);
    CHECK_EQ(as_probed("amd_strix1").simd_registers, 1024);
    CHECK_EQ(as_probed("amd_gfx1201").simd_registers, 1536);
}
