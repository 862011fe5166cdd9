// The self-test on a device: kernels that are right pass, results that are wrong take a kernel out, and verdicts can be
// given to a later context. What is judged, and how, is tested without a device (test_self_test.cpp).
#include <algorithm>
#include <cstring>

#include <unistd.h>

#include <filesystem>

#include "api_calls.hpp"
#include "cases.hpp"
#include "runtime/cache_file.hpp"
#include "runtime/runtime.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

struct SelfTested : OnDevice {
    AllFeatures all{device};
    VkattnContextInfo& info = all.info;

    // One round; `damage` may change what the device wrote.
    void round(const Context& context, const std::function<void(std::vector<std::byte>&)>& damage = {}) {
        std::vector<std::byte> data(context.self_test_size());
        CHECK_LE(data.size(), size_t{16} << 20);
        const Buffer memory = runtime.allocate(data.size());
        runtime.submit(
            [&](VkCommandBuffer c) { context.record_self_test(c, memory.handle(), 0, memory.address()); });
        runtime.download(memory, data, 0);
        if (damage) damage(data);
        context.self_tested(data.data(), data.size());
    }
    // Rounds until all is known.
    int rounds(const Context& context, const std::function<void(std::vector<std::byte>&)>& damage = {}) {
        int count = 0;
        for (; context.self_test_size() != 0; count++) {
            REQUIRE_LT(count, 4);
            round(context, damage);
        }
        return count;
    }
};

VkattnProblem small_problem() {
    return parse_case("h=2 sq=20 skv=30 d=64 dtype=f16", "here").problem;
}

std::string chosen_kernel(const Context& context) {
    return Plan(context, small_problem()).info().kernel;
}

}  // namespace

TEST_CASE_FIXTURE(SelfTested, "self-test: the kernels of this device are right, in one round") {
    const Context context(info);
    const std::string before = Plan(context, small_problem()).describe();
    CHECK_EQ(rounds(context), 1);
    const std::string verdicts = context.self_test_verdicts();
    INFO(verdicts);
    CHECK_EQ(verdicts.find("failed"), std::string::npos);
    CHECK_NE(verdicts.find("\nforward rows float32 float32 passed\n"), std::string::npos);
    CHECK_NE(verdicts.find("\nbackward " + chosen_kernel(context) + " bfloat16"), std::string::npos);
    CHECK_EQ(Plan(context, small_problem()).describe(), before);

    // A later context begins with them.
    info.self_test_verdicts = verdicts.c_str();
    const Context told(info);
    CHECK_EQ(told.self_test_size(), 0);
    CHECK_EQ(told.self_test_verdicts(), verdicts);
    info.self_test_verdicts = "of something else";
    CHECK_NE(Context(info).self_test_size(), 0);
    // A caller that was compiled against an earlier version has no such field.
    info.self_test_verdicts = verdicts.c_str();
    info.struct_size = offsetof(VkattnContextInfo, self_test_verdicts);
    CHECK_NE(Context(info).self_test_size(), 0);
}

TEST_CASE_FIXTURE(SelfTested,
                  "self-test: a device that writes nothing right has no kernel left, and says why") {
    const Context context(info);
    const std::string first = chosen_kernel(context);
    // As if nothing had been written: poison stays in the outputs.
    const auto poison = [](std::vector<std::byte>& data) { std::memset(data.data(), 0xff, data.size()); };
    round(context, poison);
    const std::string verdicts = context.self_test_verdicts();
    INFO(verdicts);
    CHECK_EQ(verdicts.find("passed"), std::string::npos);
    CHECK_NE(verdicts.find("forward " + first + " float16 "), std::string::npos);
    CHECK_NE(verdicts.find("nan instead of "), std::string::npos);
    rounds(context, poison);
    VkattnPlanInfo plan_info;
    vkattn_plan_info_init(&plan_info);
    const VkattnProblem problem = small_problem();
    const Seen seen = call(vkattn_plan_check, context.get(), &problem, nullptr, &plan_info);
    CHECK_EQ(seen.returned, VKATTN_UNSUPPORTED);
    CHECK_NE(std::string(seen.error.message).find("failed the self-test on this device"), std::string::npos);
}

TEST_CASE_FIXTURE(SelfTested, "self-test: bad arguments are refused by name") {
    const Context context(info);
    const Buffer memory = runtime.allocate(context.self_test_size());
    const std::vector<std::byte> data(context.self_test_size());
    check_invalid(call(vkattn_context_self_tested, context.get(), data.data(), data.size()), "size_bytes");
    runtime.submit([&](VkCommandBuffer c) {
        const VkBuffer buffer = memory.handle();
        const VkDeviceAddress at = memory.address();
        check_invalid(call(vkattn_cmd_self_test, nullptr, context.get(), buffer, VkDeviceSize{0}, at),
                      "command_buffer");
        check_invalid(call(vkattn_cmd_self_test, c, nullptr, buffer, VkDeviceSize{0}, at), "context");
        check_invalid(call(vkattn_cmd_self_test, c, context.get(), nullptr, VkDeviceSize{0}, at), "buffer");
        check_invalid(call(vkattn_cmd_self_test, c, context.get(), buffer, VkDeviceSize{2}, at), "offset");
        check_invalid(call(vkattn_cmd_self_test, c, context.get(), buffer, VkDeviceSize{0}, at + 4),
                      "address");
        check_invalid(
            call(vkattn_cmd_self_test, c, context.get(), buffer, VkDeviceSize{0}, VkDeviceAddress{0}),
            "address");
        context.record_self_test(c, buffer, 0, at);
    });
    check_invalid(call(vkattn_context_self_tested, context.get(), data.data(), data.size() - 1),
                  "size_bytes");
    check_invalid(call(vkattn_context_self_tested, context.get(), nullptr, data.size()), "results");
    check_invalid(call(vkattn_context_self_tested, nullptr, data.data(), data.size()), "context");
    const uint32_t count = context.self_test_count();
    check_invalid(call(vkattn_self_test_build, context.get(), count), "index");
    check_invalid(call(vkattn_self_test_build, nullptr, 0u), "context");
    CHECK_EQ(vkattn_self_test_size(nullptr), 0);
    CHECK_EQ(vkattn_self_test_count(nullptr), 0);
}

namespace {

// A cache file of this test's own, which is gone at its end.
struct CacheFile {
    CacheFile() { std::filesystem::remove(path); }
    ~CacheFile() { std::filesystem::remove(path); }
    std::string path =
        (std::filesystem::temp_directory_path() / ("vkattn_self_test_" + std::to_string(::getpid())))
            .string();
};

std::vector<std::string> messages_of(const Runtime& runtime) {
    std::vector<std::string> all;
    for (uint32_t i = 0; vkattn_runtime_message(runtime.get(), i) != nullptr; i++)
        all.emplace_back(vkattn_runtime_message(runtime.get(), i));
    return all;
}

std::string verdicts_of(const Runtime& runtime) {
    return detail::text_of(vkattn_self_test_verdicts, static_cast<const VkattnContext*>(runtime.context()));
}

}  // namespace

TEST_CASE_FIXTURE(OnDevice,
                  "self-test: the runtime runs it once for a driver, and remembers it in its cache file") {
    const CacheFile file;
    RuntimeOptions options;
    options.device = device.info().uuid;
    options.api_version = VK_API_VERSION_1_2;
    const std::string none = verdicts_of(Runtime(options));  // without a file
    CHECK_EQ(std::ranges::count(none, '\n'), 2);             // the device's, and the features'
    options.pipeline_cache = file.path;
    std::string first;
    core::DeviceCaps caps;
    vkattn::runtime::CacheKey key;
    {
        const Runtime tested(options);
        first = verdicts_of(tested);
        CHECK_EQ(vkattn_self_test_size(tested.context()), 0);
        CHECK_NE(first.find(" passed\n"), std::string::npos);
        CHECK(messages_of(tested).empty());
        key = tested.get()->cache_key;
        caps = tested.context()->caps;
    }
    // A file that tells of a failure is believed by the next start, which shows that the test was not run again.
    auto sections = vkattn::runtime::read_cache_file(file.path, key);
    caps.verdicts.front().failure = "out[1] is 2 instead of 1";
    const std::string text = core::verdicts_text(caps, vkattn_version());
    const auto keep = [&](const std::string& old, std::string_view kept) {
        const auto section = std::ranges::find_if(sections, [&](const auto& one) {
            return std::string(one.second.begin(), one.second.end()) == old;
        });
        REQUIRE(section != sections.end());
        section->second = {kept.begin(), kept.end()};
        vkattn::runtime::write_cache_file(file.path, key, sections);
    };
    keep(first, text);
    {
        const Runtime told(options);
        CHECK_EQ(verdicts_of(told), text);
        REQUIRE_EQ(messages_of(told).size(), 1);
        CHECK_NE(messages_of(told)[0].find("out[1] is 2 instead of 1"), std::string::npos);
    }
    // One that tells of a test which did not end is not: the process may have been interrupted.
    keep(text, "begun");
    {
        const Runtime again(options);
        CHECK_EQ(verdicts_of(again), first);
        CHECK(messages_of(again).empty());
        // It is kept at once, in case that this process is interrupted, too.
        const auto now = vkattn::runtime::read_cache_file(file.path, key);
        CHECK(std::ranges::any_of(now, [&](const auto& one) {
            return std::string(one.second.begin(), one.second.end()) == first;
        }));
        // The pipelines of earlier starts are still there.
        CHECK_EQ(now.size(), sections.size());
    }
    // One that tells of a test which twice did not end is.
    keep("begun", "begun twice");
    {
        const Runtime warned(options);
        CHECK_EQ(verdicts_of(warned), none);
        REQUIRE_EQ(messages_of(warned).size(), 1);
        CHECK_NE(messages_of(warned)[0].find("did not end"), std::string::npos);
    }
    options.self_test = VKATTN_SELF_TEST_NEVER;
    CHECK_EQ(verdicts_of(Runtime(options)), none);
    options.self_test = VKATTN_SELF_TEST_ALWAYS;
    CHECK_EQ(verdicts_of(Runtime(options)), first);
    options.self_test = VKATTN_SELF_TEST_ONCE;
    CHECK_EQ(verdicts_of(Runtime(options)), first);  // what was found last is what is kept

    // It tells how far it is, and may be stopped at each step: then nothing is known, and the file says what it did.
    options.self_test = VKATTN_SELF_TEST_ALWAYS;
    uint32_t last = UINT32_MAX, calls = 0;
    options.self_test_progress = [&](uint32_t done, uint32_t steps, const char* doing) {
        CHECK_EQ(done, calls++);
        CHECK_LT(done, steps);
        CHECK_EQ(done + 1 == steps, std::string(doing) == "running the self-test");
        last = std::min(last, steps - 1);
        return done == last;
    };
    const auto check_stops_at = [&](uint32_t step) {
        calls = 0;
        last = step;
        const Runtime stopped(options);
        CHECK_EQ(calls, last + 1);
        CHECK_EQ(verdicts_of(stopped), none);
        REQUIRE_EQ(messages_of(stopped).size(), 1);
        CHECK_NE(messages_of(stopped)[0].find("stopped"), std::string::npos);
    };
    for (const uint32_t step : {0u, 1u, UINT32_MAX}) check_stops_at(step);
    options.self_test = VKATTN_SELF_TEST_ONCE;
    CHECK_EQ(verdicts_of(Runtime(options)), first);  // without a call
    std::filesystem::remove(file.path);
    check_stops_at(0);
    for (const auto& [name, content] : vkattn::runtime::read_cache_file(file.path, key))
        CHECK_EQ(content.empty(), name != "pipelines");  // the next start tests
    options.self_test_progress = [](uint32_t, uint32_t, const char*) -> bool {
        throw std::out_of_range("mine");
    };
    CHECK_THROWS_AS(Runtime{options}, std::out_of_range);
    options.self_test_progress = nullptr;

    options.self_test = static_cast<VkattnSelfTest>(3);
    CHECK_THROWS_WITH_AS(Runtime{options}, "options.self_test: is not a VkattnSelfTest", RuntimeError);
}
