// What a context is told when it is made, and what it says once its device is lost.
#include <vector>

#include "api_calls.hpp"
#include "cases.hpp"
#include "runtime/devices.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

std::vector<std::byte> probe(Runtime& runtime, const Context& context) {
    std::vector<std::byte> data(context.probe_size());
    const Buffer results = runtime.allocate(data.size());
    runtime.fill(results, 0);
    runtime.submit([&](VkCommandBuffer c) { context.record_probe(c, results.address()); });
    runtime.download(results, data, 0);
    return data;
}

std::vector<uint32_t> layouts_of(const Context& context) {
    std::vector<uint32_t> layouts;
    for (const core::MatrixShape& shape : context.get()->caps.matrices) layouts.push_back(shape.layout);
    return layouts;
}

// Keeps what a new context says by level; its callback may throw behind that.
struct Told {
    std::string infos, warnings;
    bool throws = false;
    Context::OnMessage note() {
        return [this](VkattnMessageLevel level, const char* text) {
            (level == VKATTN_MESSAGE_INFO ? infos : warnings) += std::string(text) + "\n";
            if (throws) throw std::runtime_error("of the application");
        };
    }
};

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "a context of a matrix device can be given the results of an earlier probe") {
    AllFeatures all(device);
    Context unknown(all.info), probed(all.info);
    if (unknown.probe_size() == 0)
        return skip("probe results: " + device.info().name + " has nothing to probe");
    const std::vector<std::byte> memory = probe(runtime, probed);
    check_invalid(call(vkattn_context_probed, probed.get(), memory.data(), memory.size() - 1), "size_bytes");
    probed.probed(memory.data(), memory.size());
    for (const int byte : {0, 0x5a}) {  // nothing was executed
        const std::vector<std::byte> other(memory.size(), static_cast<std::byte>(byte));
        check_invalid(call(vkattn_context_probed, unknown.get(), other.data(), other.size()), "results");
    }
    CHECK(unknown.probe_size() == memory.size());
    CHECK(unknown.probe_results() == "");
    const std::string results = probed.probe_results();
    all.info.probe_results = results.data();
    all.info.probe_results_bytes = results.size();
    const Context told(all.info);
    CHECK(told.probe_size() == 0);
    CHECK(told.probe_results() == results);
    CHECK(layouts_of(told) == layouts_of(probed));
    CHECK(layouts_of(told) != layouts_of(unknown));
    const VkattnProblem p = parse_case("h=2 sq=64 skv=64 dtype=f16", "here").problem;
    CHECK(Plan(told, p).describe() == Plan(probed, p).describe());

    // The text may be cut short. A caller that was compiled against version 0.1 has no such fields.
    const auto check_unused = [&](const std::string& warning, bool throws = false) {
        Told said{{}, {}, throws};
        const Context context(all.info, said.note());
        CHECK(layouts_of(context) == layouts_of(unknown));
        CHECK(context.probe_size() == unknown.probe_size());
        CHECK(said.warnings == warning);
        CHECK((said.infos.find("matrix units") == said.infos.npos) ==
              (all.info.struct_size < sizeof all.info));
    };
    all.info.probe_results_bytes = 0;
    check_unused("");
    all.info.probe_results_bytes = results.size() - 1;
    for (const bool throws : {false, true})
        check_unused("info.probe_results is not used: it is damaged or cut short\n", throws);
    all.info.probe_results_bytes = results.size() / 20;
    check_unused("info.probe_results is not used: it is not of this device, driver and version of vkattn\n");
    all.info.probe_results_bytes = results.size();
    all.info.struct_size = offsetof(VkattnContextInfo, probe_results);
    check_unused("");
}

namespace {

// What is said of the device otherwise than its driver does; it makes it another device or driver.
using OtherDevice = void (*)(VkPhysicalDeviceProperties2&);
constexpr OtherDevice other_devices[] = {
    [](VkPhysicalDeviceProperties2& p) { p.properties.vendorID++; },
    [](VkPhysicalDeviceProperties2& p) { p.properties.deviceID++; },
    [](VkPhysicalDeviceProperties2& p) { p.properties.driverVersion++; },
    [](VkPhysicalDeviceProperties2& p) { p.properties.pipelineCacheUUID[15]++; },
    [](VkPhysicalDeviceProperties2& p) {
        for (auto* s = static_cast<VkBaseOutStructure*>(p.pNext); s != nullptr; s = s->pNext)
            if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES)
                reinterpret_cast<VkPhysicalDeviceDriverProperties*>(s)->driverID = VK_DRIVER_ID_MESA_DOZEN;
    },
};

}  // namespace

TEST_CASE_FIXTURE(Recorded, "what a probe and a self-test have found is not used on another device") {
    AllFeatures all(device);
    all.info.get_instance_proc_addr = Interposer::get_instance_proc_addr();
    const auto on = [&](OtherDevice which) {
        between.change_properties = which;
        return Context(all.info);
    };
    std::vector<std::byte> memory(
        on(nullptr).probe_size());  // an element of the first shape, which tells of no layout
    if (!memory.empty()) memory[0] = std::byte{1};
    // Returns the texts of a context that is probed, and has a verdict.
    const auto findings = [&](OtherDevice which) {
        const Context made = on(which);
        made.probed(memory.data(), memory.size());
        made.get()->caps.verdicts = {{false, "tiles", VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT32, ""}};
        return std::pair(made.probe_results(), made.self_test_verdicts());
    };
    const auto check_used = [&](const auto& texts, OtherDevice which, bool used) {
        all.info.probe_results = texts.first.data();
        all.info.probe_results_bytes = texts.first.size();
        all.info.self_test_verdicts = texts.second.c_str();
        Told told;
        between.change_properties = which;
        const Context made(all.info, told.note());
        CHECK(std::ranges::count(told.warnings, '\n') == (used ? 0 : memory.empty() ? 1 : 2));
        CHECK(made.probe_size() == (used ? 0 : memory.size()));
        CHECK(made.get()->caps.verdicts.size() == (used ? 1 : 0));
        all.info.probe_results = all.info.self_test_verdicts = nullptr;
    };
    const auto own = findings(nullptr);
    check_used(own, nullptr, true);
    for (const OtherDevice& other : other_devices) {
        CAPTURE(&other - other_devices);
        const auto theirs = findings(other);
        check_used(own, other, false);
        check_used(theirs, nullptr, false);
        check_used(theirs, other, true);
    }
}

TEST_CASE_FIXTURE(Recorded, "a lost device is said clearly, and the driver is not asked again") {
    between.pretend = true;
    const int alive = between.objects_alive();
    {
        const Context fresh = between.context();
        VkattnContext* const c = fresh.get();
        const VkattnProblem p = good_problem();
        const Plan before(fresh, p);
        between.before_pipeline = [](std::string_view) { return VK_ERROR_DEVICE_LOST; };
        const int asked = between.pipelines_asked_for();
        VkattnProblem other = p;
        other.head_dim_qk = other.head_dim_v = 64;
        for (const VkattnProblem& problem : {other, p}) {  // p's pipelines are there
            const Seen seen = create_with(c, problem);
            CHECK(seen.returned == VKATTN_DEVICE_LOST);
            CHECK(seen.error.vk_result == VK_ERROR_DEVICE_LOST);
            CHECK(seen.field() == "");
            CHECK(std::string(seen.error.message).find("the device is lost") == 0);
        }
        CHECK(between.pipelines_asked_for() == asked + 1);
        between.before_pipeline = nullptr;
        CHECK(create_with(c, other).returned == VKATTN_DEVICE_LOST);  // a lost device does not come back
        CHECK(between.pipelines_asked_for() == asked + 1);
        // Another context is of another device, as far as the library knows.
        const Context second = between.context();
        CHECK(create_with(second.get(), p).returned == VKATTN_OK);
    }
    CHECK(between.objects_alive() == alive);
    CHECK(std::string(vkattn_status_name(VKATTN_DEVICE_LOST)) == "DEVICE_LOST");
}

TEST_CASE_FIXTURE(OnDevice, "the runtime says in one line that its device is lost") {
    // A driver that has lost its device cannot be had here; the call that reports it is the same.
    const VkattnRecord lose = [](VkCommandBuffer, void*, VkattnError*) -> VkattnStatus {
        throw runtime::VulkanError(VK_ERROR_DEVICE_LOST, "vkQueueSubmit");
    };
    const Seen seen = call(vkattn_runtime_submit, runtime.get(), lose, nullptr, nullptr);
    CHECK(seen.returned == VKATTN_DEVICE_LOST);
    CHECK(seen.error.vk_result == VK_ERROR_DEVICE_LOST);
    const std::string said = RuntimeError(seen.error).what();
    CHECK(said.find("the device is lost") == 0);
    CHECK(said.find('\n') == std::string::npos);
}
