// The planner: (DeviceCaps, Problem, Options) -> Plan, or the reason why not. Pure: no Vulkan, no globals, no
// clock. A Plan is data: dispatches with everything but the addresses. src/vulkan executes it and decides
// nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "caps.hpp"
#include "problem.hpp"
#include "result.hpp"
#include "shared/forward.h"

namespace vkattn::core {

enum class Variant : uint32_t {
#define VKATTN_VARIANT(name, file, macros, needs, modules) name,
#include "variants.def"
#undef VKATTN_VARIANT
    count
};

const char* name_of(Variant variant);

// What a variant needs of the device; bits of the fourth column of variants.def.
enum Need : uint32_t {
    NEED_16BIT_STORAGE = 1,
    NEED_MATRIX = 2,  // a matrix unit, and subgroups of SPEC_SUBGROUP_SIZE
};
uint32_t needs_of(Variant variant);

// What a dispatch can touch. Bits of Dispatch::reads and writes.
enum class Region : uint32_t {
    query,
    key,
    value,
    out,
    lse,
    mask,
    kv_lengths,
    query_offsets,
    arguments,
    scores,
    mask_classes,
    parts,  // of the output, and of its lse: one for each part of the keys
    parts_lse,
    dout,
    dlse,
    dquery,
    dkey,
    dvalue,
    dbias,
    statistics,  // of query rows, for the backward
    saved,       // accumulators of the backward between dispatches
    slopes,      // gradients of the scores, as a matrix that only the baseline has
    count
};

constexpr uint32_t bit(Region region) {
    return 1u << static_cast<uint32_t>(region);
}
const char* name_of(Region region);

// Writes the address of a region, once it is known, at byte `at` of the push constants or of the argument block.
struct Patch {
    uint32_t at;
    Region region;
    uint64_t add = 0;  // modulo 2^64: may stand for a place before the region
};

struct Dispatch {
    Variant variant{};
    std::array<uint32_t, SPEC_COUNT> specialization{};  // indexed by SPEC_*
    std::array<uint32_t, 3> groups{};
    std::array<std::byte, sizeof(shared::ForwardPush)> push{};
    std::vector<Patch> patches;
    uint32_t reads = 0, writes = 0;
    bool barrier_before = false;  // something that an earlier dispatch touched since the last barrier
    // Its pipeline is what the tuning row's numbers are for, so that a driver which cannot build it gets another row.
    bool of_row = false;
    uint64_t flops = 0;  // at most: what watchdogs are cut by
};

// Part of the scratch buffer, at offset_bytes from its start.
struct ScratchRegion {
    Region region{};
    uint64_t offset_bytes = 0;
    uint64_t size_bytes = 0;
};

struct Tiles {
    uint32_t tile_q = 0, tile_kv = 0, threads = 0, shared_bytes = 0;
};

struct Refusal {
    std::string kernel, reason;
};

struct Plan {
    Problem problem;
    std::string kernel, tuning_row,
        tuning;  // tuning: the row's numbers, in the form that options.tuning takes
    Tiles tiles;
    std::vector<Dispatch> dispatches;
    std::vector<std::byte> arguments;  // written to the scratch region `arguments` before the first dispatch
    std::vector<Patch> argument_patches;
    uint32_t num_splits = 1;           // parts of the keys
    VkattnDtype operands{};            // of the products
    std::optional<Backward> backward;  // the plan is one of vkattn_backward_create
    std::optional<Combine> combine;    // the plan is one of vkattn_combine_create; problem says nothing then
    std::vector<ScratchRegion> scratch;
    uint64_t scratch_bytes = 0;
    std::vector<Refusal> refused;  // every other kernel, and why
};

constexpr uint64_t scratch_alignment = 256;

struct Options {
    std::string kernel;  // "" = the planner chooses
    std::string tuning;  // "key=value,..." over the chosen row
    uint64_t max_scratch_bytes = 0;
    uint64_t max_dispatch_flops = 0;
    uint32_t num_splits = 0;
    bool batch_invariant = false;
    VkattnPrecision precision{};
    std::vector<std::string> rejected_rows;  // tuning rows whose pipelines this device failed to build
};

Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Options& options);
Result<Plan> make_plan(const DeviceCaps& caps, const Problem& problem, const Backward& backward,
                       const Options& options);
Result<Plan> make_plan(const DeviceCaps& caps, const Combine& combine);

// Why this device cannot run vkattn at all; empty if it can.
std::string refuse_device(const DeviceCaps& caps);

std::vector<std::string> kernel_names();

// JSON, the text behind vkattn_plan_describe.
std::string describe(const Plan& plan);

}  // namespace vkattn::core
