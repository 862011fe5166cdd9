// These tests say which kernel and tuning row each device of tests/profiles gets for the problems that people have
// most, after a probe of its matrix units. tests/golden/choices.txt has a line for each, so that a wrong choice is
// seen. They also check the rows that are chosen by what a device reports of itself.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "gate/layouts.hpp"
#include "plan_cases.hpp"
#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

const std::string folder = VKATTN_TESTS_DIR;
const std::string choices_file = folder + "/golden/choices.txt";

// A device as the runtime plans for it: with its matrix units and what the probe finds of them. NVIDIA's own driver has
// the layout that NVK's sources have (seen on an H200).
core::DeviceCaps as_probed(const std::string& name) {
    const core::DeviceCaps caps = load_with_matrix_units(folder + "/profiles/" + name + ".txt");
    if (caps.driver_id == core::driver_nvidia) return probed(caps);
    return with_known_layouts(caps).back().caps;
}

VkattnProblem half(HeadDims dims, const Shape& shape) {
    return make_problem(dims, shape, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16);
}

std::string choice_of(const core::DeviceCaps& caps, const VkattnProblem& given, bool backward) {
    const core::Problem p = resolved(given);
    const auto plan = backward ? make_plan(caps, p, make_backward(p), {}) : make_plan(caps, p, {});
    return plan ? plan->kernel + " " + plan->tuning_row : "none: " + plan.failure().message;
}

std::vector<std::string> current_choices() {
    std::vector<std::string> lines;
    for (const Profile& device : profiles()) {
        const core::DeviceCaps caps = as_probed(device.name);
        const auto add = [&](const char* name, uint32_t dim, const Shape& shape, bool backward) {
            lines.push_back(fmt::format("{} {}-d{}: {}", device.name, name, dim,
                                        choice_of(caps, half({dim, dim}, shape), backward)));
        };
        for (const uint32_t dim : {64u, 128u}) add("forward", dim, {1, 16, 16, 4096, 4096, true}, false);
        for (const uint32_t dim : {64u, 128u}) add("backward", dim, {1, 16, 16, 4096, 4096, true}, true);
        for (const uint32_t dim : {64u, 128u}) add("decode", dim, {1, 32, 8, 1, 8192}, false);
        add("decode-group8", 128, {1, 64, 8, 1, 8192}, false);
    }
    return lines;
}

std::string row_of(const core::DeviceCaps& caps, const VkattnProblem& given,
                   const core::Options& options = {}) {
    return planned(caps, resolved(given), options).tuning_row;
}

}  // namespace

TEST_CASE("choices: each profile has the kernels and rows that it had") {
    const std::vector<std::string> now = current_choices();
    if (const char* update = std::getenv("VKATTN_UPDATE_GOLDEN");
        update != nullptr && std::string(update) == "1") {
        std::ofstream file(choices_file, std::ios::binary);
        for (const std::string& line : now) file << line << "\n";
        file.close();
        REQUIRE_MESSAGE(file.good(), choices_file << " could not be written");
    }
    std::ifstream file(choices_file);
    std::vector<std::string> golden;
    for (std::string line; std::getline(file, line);) golden.push_back(line);
    REQUIRE_EQ(golden.size(), now.size());
    for (size_t i = 0; i < now.size(); i++) CHECK_EQ(now[i], golden[i]);
}

TEST_CASE("choices: what a device has units or dot products for does without them nowhere") {
    for (const std::string& line : current_choices()) {
        CAPTURE(line);
        const std::string device = line.substr(0, line.find(' ')), choice = line.substr(line.find(": ") + 2);
        const core::DeviceCaps caps = as_probed(device);
        if (caps.type == core::DeviceType::cpu || choice.starts_with("none")) continue;
        const bool decodes = line.find(" decode") != std::string::npos;
        const bool of_group8 =
            line.find(" decode-group8") != std::string::npos;  // beyond the rows kernels of some
        const bool goes_back = line.find(" backward") != std::string::npos;
        // Matrix backwards of 128 head dims have rows for NVIDIA and AMD only: others have too few registers.
        const bool has_rows = !goes_back || line.find("-d128:") == std::string::npos ||
                              caps.vendor_id == 0x10de || caps.vendor_id == 0x1002;
        if (!caps.matrices.empty() && !decodes && has_rows) CHECK(choice.starts_with("matrix "));
        if (caps.dot_float16 && decodes && !of_group8) CHECK(choice.starts_with("rows_dot "));
        if (caps.dot_float16 && caps.matrices.empty() && !decodes) CHECK(choice.starts_with("tiles_dot "));
    }
}

TEST_CASE("choices: only devices that Vulkan 1.2 with device addresses is lacking have no kernel") {
    for (const Profile& device : profiles()) {
        CAPTURE(device.name);
        const bool is_usable =
            device.caps.buffer_device_address && device.caps.api_version >= core::version_1_2;
        const std::string choice =
            choice_of(as_probed(device.name), half({64, 64}, {1, 1, 1, 100, 100}), false);
        CHECK_EQ(choice.starts_with("none: "), !is_usable);
    }
}

TEST_CASE("choices: RDNA3's rows follow the registers of a SIMD") {
    const Shape shape{1, 2, 2, 304, 304};
    const auto rows = [&](const core::DeviceCaps& caps) {
        VkattnProblem biased = half({128, 128}, shape), masked = biased, capped = biased;
        set_mask(biased, VKATTN_MASK_FLOAT, MaskShape::whole);
        set_mask(masked, VKATTN_MASK_BOOL, MaskShape::whole);
        capped.softcap = 30;
        core::Options invariant;
        invariant.batch_invariant = true;
        return std::vector<std::string>{row_of(caps, half({128, 128}, shape)),
                                        row_of(caps, biased),
                                        row_of(caps, masked),
                                        row_of(caps, capped),
                                        row_of(caps, half({128, 128}, shape), invariant),
                                        row_of(caps, half({125, 128}, shape))};
    };
    const std::vector<std::string> of_any = {"rdna3-wide-d128",   "rdna3-bias-d128",   "rdna3-turned-d128",
                                             "rdna3-turned-d128", "rdna3-turned-d128", "rdna3-turned-d128"};
    const std::vector<std::string> of_many = {"rdna3-1536-wide", "rdna3-1536-bias", "rdna3-1536-d128",
                                              "rdna3-1536-d128", "rdna3-1536-d128", "rdna3-1536-d128"};
    CHECK_EQ(as_probed("amd_navi31").simd_registers, 1536);
    CHECK_EQ(as_probed("amd_phoenix").simd_registers, 1024);
    CHECK_EQ(as_probed("amd_strix1").simd_registers, 1024);
    CHECK(rows(as_probed("amd_navi31")) == of_many);
    for (const char* name : {"amd_phoenix", "amd_strix1"}) CHECK(rows(as_probed(name)) == of_any);
    core::DeviceCaps unknown = as_probed("amd_navi31");  // whose driver lacks the extension
    unknown.simd_registers = 0;
    CHECK(rows(unknown) == of_any);
    VkattnProblem masked = half({64, 64}, shape);
    set_mask(masked, VKATTN_MASK_BOOL, MaskShape::whole);
    CHECK_EQ(row_of(as_probed("amd_navi31"), half({64, 64}, shape)), "rdna3-1536-d64");
    CHECK_EQ(row_of(as_probed("amd_navi31"), masked), "rdna3-1536-d64");
    for (const char* name : {"amd_phoenix", "amd_strix1"}) {
        CHECK_EQ(row_of(as_probed(name), half({64, 64}, shape)), "rdna3-wide-d64");
        CHECK_EQ(row_of(as_probed(name), masked), "rdna3-turned-d64");
    }
    // RDNA4 has as many registers, and other rows.
    const core::DeviceCaps rdna4 = as_probed("amd_gfx1201");
    CHECK_EQ(rdna4.simd_registers, 1536);
    CHECK_EQ(row_of(rdna4, half({128, 128}, shape)), "rdna4-turned-d128");
    CHECK_EQ(row_of(rdna4, half({64, 64}, shape)), "rdna4-turned-d64");
}

TEST_CASE("choices: registers are counted as of 32 invocations, whoever counts them") {
    CHECK_EQ(core::simd_registers_of(core::driver_radv, 768), 1536);
    constexpr uint32_t amd_open_source = 2;  // VkDriverId
    CHECK_EQ(core::simd_registers_of(amd_open_source, 1536), 1536);
    CHECK_EQ(core::simd_registers_of(core::driver_radv, 0), 0);
}
