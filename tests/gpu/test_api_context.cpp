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

}  // namespace

TEST_CASE_FIXTURE(OnDevice, "a context of a matrix device can be given the results of an earlier probe") {
    AllFeatures all(device);
    Context unknown(all.info), probed(all.info);
    if (unknown.probe_size() == 0)
        return skip("probe results: " + device.info().name + " has nothing to probe");
    const std::vector<std::byte> results = probe(runtime, probed);
    probed.probed(results.data(), results.size());
    all.info.probe_results = results.data();
    all.info.probe_results_bytes = results.size();
    const Context told(all.info);
    CHECK(layouts_of(told) == layouts_of(probed));
    CHECK(layouts_of(told) != layouts_of(unknown));
    const VkattnProblem p = parse_case("h=2 sq=64 skv=64 dtype=f16", "here").problem;
    CHECK(Plan(told, p).describe() == Plan(probed, p).describe());

    const auto create = [&] {
        VkattnContext* context = nullptr;
        const Seen seen = call(vkattn_context_create, &all.info, &context);
        CHECK((context != nullptr) == (seen.returned == VKATTN_OK));
        return seen;
    };
    all.info.probe_results_bytes--;
    check_invalid(create(), "info.probe_results_bytes");
    all.info.probe_results_bytes = 0;
    check_invalid(create(), "info.probe_results_bytes");
    // A caller that was compiled against version 0.1 has no such fields.
    all.info.struct_size = offsetof(VkattnContextInfo, probe_results);
    const Context old(all.info);
    CHECK(layouts_of(old) == layouts_of(unknown));
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
