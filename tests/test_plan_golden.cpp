// Plans in a few words, for every profile and some typical problems, against tests/golden/plans.txt.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "plan_cases.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

const std::string golden_file = VKATTN_TESTS_DIR "/golden/plans.txt";

struct Case {
    const char* name;
    const char* kernel;
    HeadDims dims;
    Shape shape;
    Layout layout = Layout::contiguous;
    uint32_t alignment_bytes = 16;
    VkattnDtype dtype = VKATTN_DTYPE_FLOAT32;
};

const std::vector<Case>& cases() {
    static const std::vector<Case> all{
        {"d64-8k", "auto", {64, 64}, {1, 16, 16, 8192, 8192}},
        {"d64-causal-1m", "auto", {64, 64}, {1, 1, 1, 1u << 20, 1u << 20, true}},
        {"d128-gqa-causal", "auto", {128, 128}, {2, 32, 8, 4096, 4096, true}, Layout::bshd},
        {"d128-wide", "auto", {128, 128}, {2, 4, 4, 1024, 1024}, Layout::wide},
        {"d128-decode", "auto", {128, 128}, {8, 32, 8, 1, 32768}},
        {"d59-window", "auto", {59, 59}, {1, 2, 2, 97, 1025, true, 128}, Layout::contiguous, 4},
        {"d96-heads-70000", "auto", {96, 96}, {70000, 1, 1, 64, 64}},
        {"d256", "auto", {256, 256}, {1, 8, 8, 2048, 2048}},
        {"d576-mla", "auto", {576, 512}, {1, 128, 1, 16, 8192, true}},
        {"d576", "auto", {576, 576}, {1, 4, 4, 512, 512}},
        {"empty", "auto", {64, 64}, {1, 4, 4, 0, 512}},
        {"d64-baseline", "materialized", {64, 64}, {2, 64, 64, 2048, 2048}},
        {"d128-baseline-16k", "materialized", {128, 128}, {1, 1, 1, 16385, 16384}},
        {"d64-f16", "auto", {64, 64}, {1, 16, 16, 1024, 1024}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16},
    };
    return all;
}

// Dispatches of one shape are one item: "3 x scores[16,32,32]".
std::string dispatches_of(const core::Plan& plan) {
    std::vector<std::pair<std::string, size_t>> items;
    size_t barriers = 0;
    for (const core::Dispatch& d : plan.dispatches) {
        barriers += d.barrier_before;
        const std::string text =
            fmt::format("{}[{},{},{}]", name_of(d.variant), d.groups[0], d.groups[1], d.groups[2]);
        size_t i = 0;
        while (i < items.size() && items[i].first != text) i++;
        if (i == items.size()) items.emplace_back(text, 0);
        items[i].second++;
    }
    std::string out;
    for (const auto& [text, count] : items)
        out += fmt::format("{}{} x {}", out.empty() ? "" : " + ", count, text);
    return out.empty() ? "no dispatch" : fmt::format("{}, barriers {}", out, barriers);
}

std::string line_of(const Profile& device, const Case& c) {
    VkattnProblem problem = make_problem(c.dims, c.shape, c.layout, c.alignment_bytes);
    problem.dtype = c.dtype;
    core::Options options;
    options.kernel = c.kernel;
    const std::string head = fmt::format("{} {}: ", device.name, c.name);
    const auto plan = make_plan(device.caps, resolved(problem), options);
    if (!plan) return head + fmt::format("UNSUPPORTED '{}' {}", plan.failure().field, plan.failure().message);
    return head + fmt::format("{} {} {}x{} threads {} shared {}; {}; scratch {}", plan->kernel,
                              plan->tuning_row, plan->tiles.tile_q, plan->tiles.tile_kv, plan->tiles.threads,
                              plan->tiles.shared_bytes, dispatches_of(*plan), plan->scratch_bytes);
}

std::vector<std::string> current_lines() {
    std::vector<std::string> lines;
    for (const Profile& device : profiles())
        for (const Case& c : cases()) lines.push_back(line_of(device, c));
    return lines;
}

std::vector<std::string> golden_lines() {
    std::ifstream file(golden_file);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

// By the text before the colon, so that one more profile or case does not make every line differ.
std::string diff(const std::vector<std::string>& golden, const std::vector<std::string>& now) {
    const auto key = [](const std::string& line) { return line.substr(0, line.find(": ")); };
    std::map<std::string, std::string> before, after;
    for (const std::string& line : golden) before[key(line)] = line;
    for (const std::string& line : now) after[key(line)] = line;
    std::string out;
    for (const std::string& line : golden)
        if (after.count(key(line)) == 0) out += "- " + line + "\n";
    for (const std::string& line : now) {
        const auto old = before.find(key(line));
        if (old != before.end() && old->second == line) continue;
        if (old != before.end()) out += "- " + old->second + "\n";
        out += "+ " + line + "\n";
    }
    return out;
}

}  // namespace

TEST_CASE("golden: plans are what they were") {
    const std::vector<std::string> now = current_lines();
    if (const char* update = std::getenv("VKATTN_UPDATE_GOLDEN");
        update != nullptr && std::string(update) == "1") {
        std::ofstream file(golden_file, std::ios::binary);
        for (const std::string& line : now) file << line << "\n";
        file.close();
        REQUIRE_MESSAGE(file.good(), golden_file << " could not be written");
        MESSAGE("rewrote " << golden_file);
    }
    const std::vector<std::string> golden = golden_lines();
    const bool same = golden == now;
    CHECK_MESSAGE(
        same,
        golden_file << " differs:\n"
                    << diff(golden, now)
                    << "If this is meant: VKATTN_UPDATE_GOLDEN=1 vkattn_plan_tests, and review the file.");
}
