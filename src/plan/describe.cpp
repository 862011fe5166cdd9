// A plan as JSON. Written out, because nlohmann-json allocates where it destroys an object, which ends the process when
// host memory is out.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan.hpp"

namespace vkattn::core {
namespace {

std::string quoted(std::string_view text) {
    std::string all = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') all += '\\';
        if (static_cast<unsigned char>(c) < 0x20)
            all += fmt::format("\\u{:04x}", c);
        else
            all += c;
    }
    return all + "\"";
}

std::string describe(const Plan& plan, const Dispatch& d) {
    return fmt::format(R"({{"variant":{},"groups":[{}],"barrier_before":{},"flops":{}}})",
                       quoted(name_of(plan.pipelines[d.pipeline].module)), fmt::join(d.groups, ","),
                       d.barrier_before, d.flops);
}

}  // namespace

std::string describe(const Plan& plan) {
    std::vector<std::string> dispatches, refused;
    for (const Dispatch& d : plan.dispatches) dispatches.push_back(describe(plan, d));
    for (const Refusal& r : plan.refused)
        refused.push_back(fmt::format("{}:{}", quoted(r.kernel), quoted(r.reason)));
    return fmt::format(
        R"({{"kernel":{},"tuning_row":{},"tuning":{},)"
        R"("tiles":{{"tile_q":{},"tile_kv":{},"threads":{},"shared_bytes":{}}},)"
        R"("precision":{},"num_splits":{},"scratch_bytes":{},"dispatches":[{}],"refused":{{{}}}}})",
        quoted(plan.kernel), quoted(plan.tuning_row), quoted(plan.tuning), plan.tiles.tile_q,
        plan.tiles.tile_kv, plan.tiles.threads, plan.tiles.shared_bytes, quoted(name_of(plan.operands)),
        plan.num_splits, plan.scratch_bytes, fmt::join(dispatches, ","), fmt::join(refused, ","));
}

}  // namespace vkattn::core
