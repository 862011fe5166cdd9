#include <nlohmann/json.hpp>

#include "plan.hpp"

namespace vkattn::core {

std::string describe(const Plan& plan) {
    using Json = nlohmann::ordered_json;
    Json out;
    out["kernel"] = plan.kernel;
    out["tuning_row"] = plan.tuning_row;
    out["tuning"] = plan.tuning;
    out["tiles"] = {{"tile_q", plan.tiles.tile_q},
                    {"tile_kv", plan.tiles.tile_kv},
                    {"threads", plan.tiles.threads},
                    {"shared_bytes", plan.tiles.shared_bytes}};
    out["precision"] = name_of(plan.operands);
    out["num_splits"] = plan.num_splits;
    out["scratch_bytes"] = plan.scratch_bytes;
    out["dispatches"] = Json::array();
    for (const Dispatch& d : plan.dispatches)
        out["dispatches"].push_back({{"variant", name_of(plan.pipelines[d.pipeline].module)},
                                     {"groups", d.groups},
                                     {"barrier_before", d.barrier_before},
                                     {"flops", d.flops}});
    out["refused"] = Json::object();
    for (const Refusal& r : plan.refused) out["refused"][r.kernel] = r.reason;
    return out.dump();
}

}  // namespace vkattn::core
