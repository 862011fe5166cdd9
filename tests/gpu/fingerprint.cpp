// vkattn_fingerprint: reads lines "forward CASE" and "backward CASE", and prints for each the fingerprint of what the
// case runs on the current device, then the modules that it runs. Builds no pipeline and executes nothing.
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "gpu/case_plan.hpp"
#include "vkattn/runtime.hpp"
#include "vulkan/context.hpp"
#include "vulkan/spirv.hpp"

namespace vkattn::test {
namespace {

// The two contexts of the GPU tests: the runtime's, with all features, and one with no feature but the address.
class Contexts {
  public:
    // run_share() in forward_run.cpp chooses by this rule, too.
    const core::DeviceCaps& caps_for(const Case& c) const {
        const bool all_features = c.kernel.starts_with("matrix") || c.precision != VKATTN_PRECISION_STORAGE;
        return (all_features ? runtime_.context() : plain_.get())->caps;
    }

  private:
    static VkattnContextInfo plain_info(const RuntimeHandles& h) {
        VkattnContextInfo info = context_info();
        info.get_instance_proc_addr = h.get_instance_proc_addr;
        info.instance = h.instance;
        info.physical_device = h.physical_device;
        info.device = h.device;
        info.api_version = VK_API_VERSION_1_2;
        return info;
    }

    Runtime runtime_;
    Context plain_{plain_info(runtime_.handles())};
};

// The tests double a limit that is too low for the problem.
core::Plan plan_of(const core::DeviceCaps& caps, Case c, bool backward) {
    if (backward) c.num_splits = 0;
    for (int doubled = 0;; doubled++) {
        const auto plan = core_plan_of(caps, c, backward);
        if (plan) return *plan;
        if (plan.failure().field != "options.max_dispatch_flops" || doubled == 24)
            throw std::runtime_error(c.text + ": " + plan.failure().message);
        c.max_dispatch_flops *= 2;
    }
}

void print_case(const Contexts& contexts, const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string pass = line.substr(0, space);
    if (pass != "forward" && pass != "backward")
        throw std::runtime_error("neither forward nor backward: " + line);
    const Case c = parse_case(line.substr(space), "standard input");
    const core::DeviceCaps& caps = contexts.caps_for(c);
    std::vector<core::Plan> plans;
    if (pass == "backward") plans.push_back(plan_of(caps, c, true));
    // A backward whose scores are large begins with the device's own forward.
    if (pass == "forward" || c.values != Values::normal) plans.push_back(plan_of(caps, c, false));

    core::PipelineConstants constants;
    std::set<std::string> modules;
    for (const core::Plan& plan : plans) {
        fmt::print("{:016x}", fingerprint(plan, constants));
        for (const core::Dispatch& d : plan.dispatches) {
            const core::Pipeline& p = plan.pipelines[d.pipeline];
            modules.insert(core::module_name(p.module, p.rolled));
        }
    }
    for (const std::string& module : modules) fmt::print(" {}", module);
    fmt::print("\n");
}

}  // namespace
}  // namespace vkattn::test

int main() {
    try {
        const vkattn::test::Contexts contexts;
        for (std::string line; std::getline(std::cin, line);) vkattn::test::print_case(contexts, line);
        return 0;
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
}
