// vkattn_fingerprint [FOLDER]: reads lines "forward CASE" and "backward CASE", and prints for each what the case runs
// on the current device: a number for its grids and push constants, then NAME:NUMBER for the module and the constants
// of each pipeline. With a folder, NUMBER.spv in it is the module with these constants. Builds no pipeline and executes
// nothing.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "gpu/case_plan.hpp"
#include "gpu/device.hpp"
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
    Runtime runtime_;
    Context plain_{context_info_of(runtime_.handles())};
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

// NUMBER.spv, unless an earlier run has left it there.
void write_specialized(const std::filesystem::path& file, const core::Pipeline& pipeline,
                       core::PipelineConstants& constants) {
    if (std::filesystem::exists(file)) return;
    const core::Spirv words = specialized(pipeline, constants);
    std::ofstream stream(file, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(words.data()),
                 static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
    if (!stream.flush()) throw std::runtime_error("cannot write " + file.string());
}

void print_case(const Contexts& contexts, const std::string& line, const std::filesystem::path& folder) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string pass = line.substr(0, space);
    if (pass != "forward" && pass != "backward")
        throw std::runtime_error("neither forward nor backward: " + line);
    Case c = parse_case(line.substr(space), "standard input");
    const core::DeviceCaps& caps = contexts.caps_for(c);
    std::vector<core::Plan> plans;
    if (pass == "backward") plans.push_back(plan_of(caps, c, true));
    // A backward whose scores are large begins with the device's own forward, without the backward's tuning.
    if (pass == "backward") c.tuning.clear();
    if (pass == "forward" || c.values != Values::normal) plans.push_back(plan_of(caps, c, false));

    core::PipelineConstants constants;
    std::string pipelines;
    for (const core::Plan& plan : plans) {
        fmt::print("{:016x}", hash_of_work(plan));
        for (const core::Pipeline& p : plan.pipelines) {
            const std::string number = fmt::format("{:016x}", fingerprint(p, constants));
            pipelines += fmt::format(" {}:{}", core::name_of(p.module), number);
            if (!folder.empty()) write_specialized(folder / (number + ".spv"), p, constants);
        }
    }
    fmt::print("{}\n", pipelines);
}

}  // namespace
}  // namespace vkattn::test

int main(int count, char** arguments) {
    try {
        const std::filesystem::path folder = count > 1 ? arguments[1] : "";
        const vkattn::test::Contexts contexts;
        for (std::string line; std::getline(std::cin, line);)
            vkattn::test::print_case(contexts, line, folder);
        return 0;
    } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
        return 1;
    }
}
