// The planner: (DeviceCaps, Problem, Options) -> Plan, or the reason why not. Pure: no Vulkan, no globals, no
// clock. A Plan is data: pipelines, and dispatches that refer to them, with everything but the addresses. src/vulkan
// executes it and decides nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "caps.hpp"
#include "interfaces.hpp"
#include "overlap.hpp"
#include "problem.hpp"
#include "result.hpp"

namespace vkattn::core {

// How the dispatches of a plan use a region. Barriers are placed by it.
enum class Role : uint32_t {
    given,      // read only
    written,    // two dispatches never write the same element, so writers do not wait for each other
    rewritten,  // dispatches may write what others wrote
};

// Memory that a dispatch can touch: bits of Pipeline::reads and writes.
enum class Region : uint32_t {
#define REGION(name, role) name,
#include "regions.def"
    count
};

static_assert(static_cast<uint32_t>(Region::count) <= 32, "a bit each");
constexpr uint32_t bit(Region region) {
    return 1u << static_cast<uint32_t>(region);
}
const char* name_of(Region region);
Role role_of(Region region);

// Writes the address of a region, once it is known, at byte `at` of the push constants or of the argument block.
struct Patch {
    uint32_t at;
    Region region;
    uint64_t add = 0;  // modulo 2^64: may stand for a place before the region
    bool operator==(const Patch&) const = default;
};

// A pipeline of a plan, and what all its dispatches have in common.
struct Pipeline {
    Module module;
    ConstantValues constants{};
    PushBytes push{};  // without addresses, and without what a Cut says
    std::vector<Patch> patches;
    uint32_t reads = 0, writes = 0;
    // The tuning row's numbers are for this pipeline: a driver that cannot build it gets another row.
    bool of_tuning_row = false;
    bool operator==(const Pipeline&) const = default;
};

// The first workgroup of a dispatch in its pipeline's whole grid, and the steps of the loop that it does. They are the
// last push constants of a kernel whose grid can be cut: interface/cut.def, and interface/backward_push.def for the
// steps.
struct Cut {
    std::array<uint32_t, 3> first{};
    uint32_t first_step = 0, end_step = 0;
    bool operator==(const Cut&) const = default;
};

// One of up to 65,536 dispatches of a plan.
struct Dispatch {
    uint32_t pipeline = 0;        // place in Plan::pipelines
    bool barrier_before = false;  // something that an earlier dispatch touched since the last barrier
    std::array<uint32_t, 3> groups{};
    Cut cut;
    uint64_t flops = 0;  // upper bound, by which dispatches are cut for watchdogs
    bool operator==(const Dispatch&) const = default;
};

// The place and size of a Cut in the push constants; the size is 0 if the kernel's grid is not cut.
struct CutPlace {
    uint32_t offset_bytes, size_bytes;
};
CutPlace cut_place(Kernel kernel);

// The value of a pipeline's constant by its name; 0 if its kernel has none of that name.
uint32_t constant_of(const Pipeline& pipeline, std::string_view name);
uint32_t constant_of(Kernel kernel, const ConstantValues& constants, std::string_view name);

// Part of the scratch buffer, at offset_bytes from its start.
struct ScratchRegion {
    Region region{};
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
    bool operator==(const ScratchRegion&) const = default;
};

struct Tiles {
    uint32_t tile_q = 0, tile_kv = 0, threads = 0, shared_bytes = 0;
    bool operator==(const Tiles&) const = default;
};

struct Refusal {
    std::string kernel, reason;
    bool operator==(const Refusal&) const = default;
};

// An array whose address a recording is given. Regions have the names that their addresses have in the args.
struct CallerArray {
    Region region{};
    uint32_t alignment_bytes = 0;  // of the address
    bool may_be_null = false;      // then it is not wanted; others are read or written
    bool is_used = true;           // false: nobody looks at the address, but no output may lie there
    bool is_output = false;
    Placement extents;  // at address 0
    bool operator==(const CallerArray&) const = default;
};

struct Plan {
    Problem problem{};  // zeros in a combine, which has none
    std::string kernel, tuning_row,
        tuning;  // tuning: the row's numbers, in the form that options.tuning takes
    Tiles tiles;
    std::vector<Pipeline> pipelines;
    std::vector<Dispatch> dispatches;
    std::vector<std::byte> arguments;  // what the first dispatches write to the scratch region `arguments`
    std::vector<Patch> argument_patches;
    uint32_t num_splits = 1;           // of the keys
    VkattnDtype operands{};            // of the products
    std::optional<Backward> backward;  // the plan is one of vkattn_backward_create
    std::optional<Combine> combine;    // the plan is one of vkattn_combine_create; problem says nothing then
    // A backward that spills dS has so many kv heads in flight, and so many steps of each; 0: it does not.
    uint32_t spill_heads = 0, spill_steps = 0;
    bool spill_makes_bias = false;    // dbias is found from it
    uint64_t spill_bytes_of_all = 0;  // what all heads and steps at once would take
    bool makes_block_map = false;     // the plan is one of vkattn_block_map_create
    std::vector<ScratchRegion> scratch;
    uint64_t scratch_bytes = 0;
    std::vector<Refusal> refused;  // every other kernel, and why
    std::vector<CallerArray>
        caller_arrays;  // addresses are checked against them, in the order of the messages
};

constexpr uint64_t scratch_alignment = 256;

// Says whether this build of the library has the kernel (VKATTN_KERNELS may leave it out).
static_assert(static_cast<uint32_t>(Kernel::count) <= 32, "DeviceCaps::missing_kernels has a bit for each");
constexpr bool has_kernel(const DeviceCaps& caps, Kernel kernel) {
    return (caps.missing_kernels >> static_cast<uint32_t>(kernel) & 1) == 0;
}

// The tuning number `rolled` of a device: 1 takes modules in their form for CPUs. A plan of matrix kernels has modules
// of both sorts.
constexpr uint32_t rolled_on(const DeviceCaps& caps, bool needs_matrix) {
    const bool missing = caps.missing_cpu_forms || (needs_matrix && caps.missing_matrix_cpu_forms);
    return caps.type == DeviceType::cpu && !missing ? 1 : 0;
}

struct Options {
    std::string kernel;  // "" = the planner chooses
    std::string tuning;  // "key=value,..." over the chosen row
    uint64_t max_scratch_bytes = 0;
    uint64_t max_dispatch_flops = 0;
    uint32_t num_splits = 0;
    bool batch_invariant = false;
    VkattnPrecision precision{};
    std::string variant;                     // "" = the library's own modules
    std::vector<Module> variants;            // those of that name
    std::vector<std::string> rejected_rows;  // tuning rows whose pipelines this device failed to build
};

// The part of a problem that a tuning row's pipelines depend on. Problems that agree in it share the rejected rows.
using RowKind = std::tuple<uint32_t, uint32_t, VkattnDtype, VkattnDtype, VkattnDtype, VkattnPrecision>;
RowKind row_kind_of(const Problem& problem, const Options& options);

Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Options& options);
Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                       const Options& options);
Result<Plan> make_plan(const DeviceCaps& caps, const Combine& combine);
// Plans the pass that makes the problem's block map of its mask.
Result<Plan> make_block_map_plan(const DeviceCaps& caps, const Problem& problem);

// Why this device cannot run vkattn at all; empty if it can.
std::string refuse_device(const DeviceCaps& caps);

std::vector<std::string> kernel_names();

// JSON, the text behind vkattn_plan_describe.
std::string describe(const Plan& plan);
// Captures call the plan's recordings so: "vkattn forward f16 b2 h8/2 4096x4096 d128 causal".
std::string label_of(const Plan& plan);

}  // namespace vkattn::core
