// Plans in a few words, for every profile and some typical problems, against tests/golden/plans.txt.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "plan_cases.hpp"
#include "plan_reading.hpp"

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
    Features features{};
    bool backward = false;
    VkattnPrecision precision = VKATTN_PRECISION_STORAGE;
};

constexpr VkattnDtype f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;

Features with(VkattnDtype dtype) {
    Features f{};
    f.dtype = dtype;
    return f;
}

Features in_parts(uint32_t num_splits) {
    Features f{};
    f.num_splits = num_splits;
    return f;
}

Features masked(MaskShape shape, bool kv_lengths = false, uint32_t num_splits = 0) {
    Features f = in_parts(num_splits);
    f.mask = VKATTN_MASK_BOOL;
    f.mask_shape = shape;
    f.kv_lengths = kv_lengths;
    return f;
}

Features cut(uint64_t max_dispatch_flops) {
    Features f{};
    f.max_dispatch_flops = max_dispatch_flops;
    return f;
}

Features invariant() {
    Features f{};
    f.batch_invariant = true;
    return f;
}

Features biased(MaskShape shape) {
    Features f = masked(shape);
    f.mask = VKATTN_MASK_FLOAT;
    return f;
}

Case backward(const char* name, HeadDims dims, const Shape& shape, const Features& features = {},
              Layout layout = Layout::contiguous) {
    return {name, "auto", dims, shape, layout, 16, features, true};
}

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
        {"d64-f16-8k", "auto", {64, 64}, {1, 16, 16, 8192, 8192}, Layout::contiguous, 16, with(f16)},
        {"d128-bf16-decode", "auto", {128, 128}, {8, 32, 8, 1, 32768}, Layout::contiguous, 16, with(bf16)},
        {"d128-f16-packed", "auto", {128, 128}, {64, 32, 8, 4, 4096, true}, Layout::bshd, 16, with(f16)},
        {"d128-split", "auto", {128, 128}, {1, 16, 4, 16, 131072, true}},
        {"d576-mla-split", "auto", {576, 512}, {1, 16, 1, 1, 65536}, Layout::contiguous, 16, with(bf16)},
        {"d64-5-parts", "auto", {64, 64}, {1, 8, 8, 1024, 8192}, Layout::contiguous, 16, in_parts(5)},
        {"d64-mask",
         "auto",
         {64, 64},
         {2, 16, 16, 4096, 4096},
         Layout::contiguous,
         16,
         masked(MaskShape::all_heads)},
        {"d64-key-mask-lengths",
         "auto",
         {64, 64},
         {4, 8, 8, 512, 2048},
         Layout::contiguous,
         16,
         masked(MaskShape::keys_of_batch, true)},
        {"d64-mask-2-parts",
         "auto",
         {64, 64},
         {1, 8, 2, 256, 65536},
         Layout::contiguous,
         16,
         masked(MaskShape::shared, false, 2)},
        {"d64-1m-keys-cut",
         "auto",
         {64, 64},
         {1, 4, 4, 1024, 1u << 20},
         Layout::contiguous,
         16,
         cut(20'000'000'000)},
        {"d64-4m-window",
         "auto",
         {64, 64},
         {1, 1, 1, 1u << 22, 1u << 22, true, 1024},
         Layout::contiguous,
         16,
         with(f16)},
        {"d128-invariant", "auto", {128, 128}, {8, 32, 8, 1, 32768}, Layout::contiguous, 16, invariant()},
        backward("backward-d64-4k", {64, 64}, {1, 16, 16, 4096, 4096}),
        backward("backward-d128-gqa-causal", {128, 128}, {2, 32, 8, 4096, 4096, true}, with(f16),
                 Layout::bshd),
        backward("backward-d576-mla", {576, 512}, {1, 16, 1, 512, 512, true}, with(bf16)),
        backward("backward-d64-bias", {64, 64}, {2, 8, 8, 2048, 2048}, biased(MaskShape::all_batches)),
        backward("backward-d64-key-bias", {64, 64}, {2, 8, 8, 2048, 2048}, biased(MaskShape::keys)),
        backward("backward-d128-cut", {128, 128}, {1, 8, 1, 16384, 16384, true}, cut(5'000'000'000)),
        backward("backward-empty", {64, 64}, {2, 4, 4, 0, 512}),
    };
    return all;
}

Features masked_half(VkattnMaskType type, MaskShape shape) {
    Features f = with(f16);
    f.mask = type;
    f.mask_shape = shape;
    return f;
}

Features half_in_parts(uint32_t num_splits) {
    Features f = with(f16);
    f.num_splits = num_splits;
    return f;
}

Features half_invariant() {
    Features f = with(f16);
    f.batch_invariant = true;
    return f;
}

Case matrix(const char* name, HeadDims dims, const Shape& shape, const Features& features,
            uint32_t alignment_bytes = 16) {
    return {name, "auto", dims, shape, Layout::contiguous, alignment_bytes, features};
}

Case rounded(const char* name, VkattnPrecision precision) {
    Case c = matrix(name, {64, 64}, {1, 16, 16, 8192, 8192}, {});
    c.precision = precision;
    return c;
}

// These cases are planned on devices with matrix units; the device part of a line says what is known of their layout.
const std::vector<Case>& matrix_cases() {
    const Shape square{1, 16, 16, 4096, 4096}, gqa{2, 32, 8, 4096, 4096, true};
    static const std::vector<Case> all{
        matrix("d64-f16-8k", {64, 64}, {1, 16, 16, 8192, 8192}, with(f16)),
        matrix("d128-f16-gqa-causal", {128, 128}, gqa, with(f16)),
        matrix("d128-bf16-gqa-causal", {128, 128}, gqa, with(bf16)),
        matrix("d80-f16", {80, 80}, square, with(f16)),
        matrix("d96-f16", {96, 96}, square, with(f16)),
        matrix("d111-f16-unaligned", {111, 59}, square, with(f16), 2),
        matrix("d256-f16", {256, 256}, square, with(f16)),
        matrix("d576-bf16-mla", {576, 512}, {1, 128, 1, 16, 8192, true}, with(bf16)),
        matrix("d128-f16-decode", {128, 128}, {8, 32, 8, 1, 32768}, with(f16)),
        matrix("d64-f16-window", {64, 64}, {1, 4, 4, 65536, 65536, true, 1024}, with(f16)),
        matrix("d64-f16-bool-mask", {64, 64}, square, masked_half(VKATTN_MASK_BOOL, MaskShape::all_heads)),
        matrix("d128-f16-float-mask", {128, 128}, square, masked_half(VKATTN_MASK_FLOAT, MaskShape::shared)),
        matrix("d64-f16-3-parts", {64, 64}, {1, 8, 8, 1024, 8192}, half_in_parts(3)),
        matrix("d128-f16-split", {128, 128}, {1, 16, 4, 16, 131072, true}, with(f16)),
        matrix("d64-f16-invariant", {64, 64}, square, half_invariant()),
        rounded("d64-f32-as-f16", VKATTN_PRECISION_FLOAT16),
        rounded("d64-f32-as-bf16", VKATTN_PRECISION_BFLOAT16),
        {"d64-f16-by-name", "matrix", {64, 64}, square, Layout::contiguous, 16, with(f16)},
        {"d64-f16-khr", "matrix_khr", {64, 64}, square, Layout::contiguous, 16, with(f16)},
        backward("backward-d64-f16", {64, 64}, square, with(f16)),
        backward("backward-d128-bf16-gqa-causal", {128, 128}, gqa, with(bf16)),
        backward("backward-d256-f16", {256, 256}, square, with(f16)),
        backward("backward-d128-f16-float-mask", {128, 128}, square,
                 masked_half(VKATTN_MASK_FLOAT, MaskShape::shared)),
        backward("backward-d576-f16", {576, 512}, {1, 16, 1, 512, 512, true}, with(f16)),
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
            fmt::format("{}[{},{},{}]", name_of(pipeline_of(plan, d)), d.groups[0], d.groups[1], d.groups[2]);
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
    VkattnProblem problem = make_problem(c.dims, c.shape, c.layout, c.alignment_bytes, c.features.dtype);
    set_features(problem, c.features);
    core::Options options = options_of(c.features);
    options.kernel = c.kernel;
    options.precision = c.precision;
    const std::string head = fmt::format("{} {}: ", device.name, c.name);
    const core::Problem p = resolved(problem);
    const auto plan = c.backward ? make_plan(device.caps, p, make_backward(p), options)
                                 : make_plan(device.caps, p, options);
    if (!plan) return head + fmt::format("UNSUPPORTED '{}' {}", plan.failure().field, plan.failure().message);
    return head + fmt::format("{} {} {}x{} threads {} shared {}; {}; parts {}, scratch {}", plan->kernel,
                              plan->tuning_row, plan->tiles.tile_q, plan->tiles.tile_kv, plan->tiles.threads,
                              plan->tiles.shared_bytes, dispatches_of(*plan), plan->num_splits,
                              plan->scratch_bytes);
}

std::vector<std::string> current_lines() {
    std::vector<std::string> lines;
    for (const Profile& device : profiles())
        for (const Case& c : cases()) lines.push_back(line_of(device, c));
    // Devices with matrix units are planned for once more with these enabled, before a probe and after it.
    for (const Profile& device : matrix_devices())
        for (const Profile& state : {Profile{device.name + " unknown-layout", device.caps},
                                     Profile{device.name + " nvidia-layout", probed(device.caps)}}) {
            if (state.name.ends_with(" nvidia-layout") && device.name != "nvidia_h200") continue;
            for (const Case& c : matrix_cases()) lines.push_back(line_of(state, c));
        }
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
