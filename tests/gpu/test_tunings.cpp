// Every row of the planner's tuning table, forced on whatever device this is: rows for GPUs run on CPUs too, where
// workgroups of several subgroups show missing barriers.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "forward_run.hpp"
#include "interposer.hpp"
#include "plan/tuning.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// CPUs take seconds to compile what is unrolled: there, two vec4 of output a lane and short steps have to do.
bool compiles_slowly() {
    return Device::get().info().type == "cpu";
}

// Head dims that are odd, and that the row is for.
std::string shape_of(const core::TuningRow& row) {
    const uint32_t most = compiles_slowly() ? 8 * row.numbers.lanes : 512;
    return fmt::format("dqk=27 dv={}", std::min(row.max_head_dim, most) - 5);
}

// Partial tiles of both kinds, a diagonal, rows that see nothing.
std::vector<std::string> sizes_for(const core::TuningRow& row) {
    const uint32_t tile_q = row.numbers.tile_q(), tile_kv = row.numbers.tile_kv(), rows = row.max_rows;
    if (row.numbers.of_rows_kernel())
        return {fmt::format("hq=2 hkv=1 sq={} skv={}", rows / 2, 2 * tile_kv + 3),
                fmt::format("b=2 sq={} skv={} causal layout=bshd", rows - 1, tile_kv + 9),
                fmt::format("sq={} skv={} causal values=ascending", rows, rows - 1)};
    return {fmt::format("hq=2 hkv=1 sq={} skv={}", tile_q + 5, 2 * tile_kv + 3),
            fmt::format("b=2 sq={} skv={} causal layout=bshd", tile_q + 3, tile_kv + 9),
            fmt::format("sq={} skv={} causal values=ascending", tile_q + 7, tile_q - 1)};
}

// "" if the device holds a plan with this tuning, else why not. Builds nothing.
std::string refusal(const std::string& text) {
    Interposer& between = Interposer::get();
    between.pretend = true;
    const Context throwaway = between.context();
    const Case c = parse_case(text, "here");
    VkattnPlan* plan = nullptr;
    VkattnError error;
    const VkattnOptions options = c.options();
    vkattn_plan_create(throwaway.get(), &c.problem, &options, &plan, &error);
    vkattn_plan_destroy(plan);
    between.pretend = false;
    return error.message;
}

// The row's numbers, with fewer threads or shorter chunks where the device is too small for it: what an invocation
// does stays the same. "": too small for even that.
std::string fitting(const core::TuningRow& row) {
    core::TileNumbers numbers = row.numbers;
    if (compiles_slowly()) numbers.unroll = std::min(numbers.unroll, 2u);
    bool told = false;
    for (;;) {
        const std::string tuning = fmt::format(
            "kernel={} tuning={}", numbers.of_rows_kernel() ? "rows" : "tiles", core::to_text(numbers));
        const std::string why = refusal(fmt::format("s=1 {} {}", shape_of(row), tuning));
        if (why.empty()) return tuning;
        CAPTURE(why);
        CHECK((why.find("shared memory") != why.npos || why.find("invocations") != why.npos));
        if (!std::exchange(told, true))
            skip(fmt::format("tuning row {} at its full size: {}", row.name, why));
        if (numbers.threads / 2 >= numbers.lanes)
            numbers.threads /= 2;
        else if (numbers.chunk != 0 && numbers.chunk % 8 == 0)
            numbers.chunk /= 2;
        else
            return "";
    }
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "every tuning row is right on odd shapes") {
    if (compiles_slowly() && device.info().subgroup_size != 4)
        return skip("tuning rows: subgroups of 4 show more; lavapipe-128 and SwiftShader run them");
    size_t count = 0;
    const core::TuningRow* const rows = core::tuning_rows(core::KernelKind::tiles, count);
    std::vector<Case> cases;
    size_t run = 0;
    for (size_t i = 0; i < count; i++) {
        const core::TuningRow& row = rows[i];
        // A CPU's own rows: every other test runs them.
        if (compiles_slowly() && row.device == core::TuningRow::Device::cpu) continue;
        const std::string tuning = fitting(row);
        if (tuning.empty()) {
            skip(fmt::format("tuning row {} at any size", row.name));
            continue;
        }
        run++;
        for (const std::string& sizes : sizes_for(row))
            cases.push_back(parse_case(fmt::format("{} {} {}", sizes, shape_of(row), tuning),
                                       fmt::format("tuning row {}", row.name)));
    }
    CHECK(run >= count / 2);
    run_cases(cases);
}
