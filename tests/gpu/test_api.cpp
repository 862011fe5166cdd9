// The C ABI with arguments that are wrong, one at a time: the right status, the field at fault, one line of text, and
// no crash. And the Runtime's own errors.
#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <functional>
#include <limits>

#include "api_calls.hpp"
#include "cases.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

extern "C" int vkattn_c_abi_check(void);

namespace {

Seen create_context(const VkattnContextInfo* info) {
    return make(vkattn_context_destroy, vkattn_context_create, info);
}

std::string error_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const RuntimeError& e) {
        return e.what();
    }
    return "";
}

}  // namespace

TEST_CASE("the header is C, and its init functions set the documented defaults") {
    CHECK(vkattn_c_abi_check() == 0);
}

TEST_CASE("names and versions are text, whatever is asked for") {
    CHECK(std::string(vkattn_version()) == "0.1.0");
    CHECK(std::string(vkattn_status_name(VKATTN_OK)) == "OK");
    CHECK(std::string(vkattn_status_name(VKATTN_INTERNAL_ERROR)) == "INTERNAL_ERROR");
    CHECK(std::string(vkattn_status_name(static_cast<VkattnStatus>(1234))) == "UNKNOWN");
}

TEST_CASE("null is legal where it should be") {
    vkattn_problem_init(nullptr);
    vkattn_options_init(nullptr);
    vkattn_combine_init(nullptr);
    vkattn_combine_args_init(nullptr);
    vkattn_backward_init(nullptr);
    vkattn_backward_args_init(nullptr);
    vkattn_context_info_init(nullptr);
    vkattn_forward_args_init(nullptr);
    vkattn_scratch_init(nullptr);
    vkattn_requirements_destroy(nullptr);
    vkattn_context_destroy(nullptr);
    vkattn_plan_destroy(nullptr);
    const char* const* names = nullptr;
    CHECK(vkattn_requirements_extensions(nullptr, &names) == 0);
    CHECK(vkattn_requirements_extensions(nullptr, nullptr) == 0);
    CHECK(vkattn_requirements_features(nullptr) == nullptr);
}

TEST_CASE_FIXTURE(Abi, "requirements refuse null") {
    const RuntimeHandles h = runtime.handles();
    VkattnRequirements* made = nullptr;
    const auto create = vkattn_requirements_create;
    const PFN_vkGetInstanceProcAddr get = h.get_instance_proc_addr;
    check_invalid(call(create, get, h.instance, h.physical_device, nullptr), "requirements");
    check_invalid(call(create, nullptr, h.instance, h.physical_device, &made), "get_instance_proc_addr");
    check_invalid(call(create, get, nullptr, h.physical_device, &made), "instance");
    check_invalid(call(create, get, h.instance, nullptr, &made), "physical_device");
    CHECK(made == nullptr);
    REQUIRE(vkattn_requirements_create(get, h.instance, h.physical_device, &made, nullptr) == VKATTN_OK);
    CHECK(vkattn_requirements_features(made) != nullptr);
    vkattn_requirements_destroy(made);
}

TEST_CASE_FIXTURE(Abi, "a context refuses what is null, too old, or not enabled") {
    const auto with = [&](const std::function<void(VkattnContextInfo&)>& spoil) {
        VkattnContextInfo info = context_info_of(runtime.handles());
        spoil(info);
        return create_context(&info);
    };
    using Info = VkattnContextInfo;
    CHECK(with([](Info&) {}).returned == VKATTN_OK);
    check_invalid(create_context(nullptr), "info");
    check_invalid(with([](Info& i) { i.struct_size = 0; }), "info.struct_size");
    check_invalid(with([](Info& i) { i.struct_size = offsetof(Info, pipeline_cache); }), "info.struct_size");
    check_invalid(with([](Info& i) { i.struct_size += 8; }), "info.struct_size");
    check_invalid(with([](Info& i) { i.get_instance_proc_addr = nullptr; }), "info.get_instance_proc_addr");
    check_invalid(with([](Info& i) { i.instance = VK_NULL_HANDLE; }), "info.instance");
    check_invalid(with([](Info& i) { i.physical_device = VK_NULL_HANDLE; }), "info.physical_device");
    check_invalid(with([](Info& i) { i.device = VK_NULL_HANDLE; }), "info.device");
    check_invalid(with([](Info& i) { i.enabled_extension_count = 1; }), "info.enabled_extensions");
    const VkattnContextInfo info = context_info_of(runtime.handles());
    check_invalid(call(vkattn_context_create, &info, static_cast<VkattnContext**>(nullptr)), "context");

    check_invalid(with([](Info& i) { i.api_version = 0; }), "info.api_version");
    for (const uint32_t version : {VK_API_VERSION_1_0, VK_API_VERSION_1_1}) {
        const Seen old = with([&](Info& i) { i.api_version = version; });
        CHECK(old.returned == VKATTN_UNSUPPORTED);
        CHECK(std::string(old.error.message).find("1.2") != std::string::npos);
    }
    // The chain is believed, whatever the device supports (test_caps.cpp has each of the features).
    VkPhysicalDeviceFeatures2 none{};
    none.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2;
    const Seen bare = with([&](Info& i) { i.features = &none; });
    CHECK(bare.returned == VKATTN_UNSUPPORTED);
    CHECK(std::string(bare.error.message).find("bufferDeviceAddress") != std::string::npos);
}

TEST_CASE_FIXTURE(Abi, "a plan names the field of the problem that is wrong") {
    CHECK(create_with(c, good_problem()).returned == VKATTN_OK);
    using P = VkattnProblem;
    // Each rule is tested without a device (test_problem.cpp); these are to show that its field reaches the caller.
    const std::pair<const char*, Spoil> faults[] = {
        {"problem.struct_size", [](P& p) { p.struct_size = 0; }},
        {"problem.struct_size", [](P& p) { p.struct_size--; }},
        {"problem.struct_size", [](P& p) { p.struct_size += 8; }},
        {"problem.dtype", [](P& p) { p.dtype = VKATTN_DTYPE_MAX_ENUM; }},
        {"problem.softmax_scale", [](P& p) { p.softmax_scale = std::numeric_limits<float>::infinity(); }},
        {"problem.mask_rank", [](P& p) { p.mask = VKATTN_MASK_FLOAT; }},
        {"problem.out_strides", [](P& p) { p.out_strides.seq = 7; }},
    };
    for (const auto& [field, spoil] : faults) {
        VkattnProblem p = good_problem();
        spoil(p);
        check_invalid(create_with(c, p), field);
    }
}

TEST_CASE_FIXTURE(Abi, "an instance without the functions is an error, not a crash") {
    VkattnContextInfo info = context_info_of(runtime.handles());
    info.get_instance_proc_addr = [](VkInstance, const char*) -> PFN_vkVoidFunction { return nullptr; };
    CHECK(create_context(&info).returned == VKATTN_UNSUPPORTED);
    VkattnRequirements* made = nullptr;
    CHECK(call(vkattn_requirements_create, info.get_instance_proc_addr, info.instance, info.physical_device,
               &made)
              .returned == VKATTN_UNSUPPORTED);
    CHECK(made == nullptr);
}

TEST_CASE_FIXTURE(Abi, "a plan refuses null and bad options") {
    const VkattnProblem p = good_problem();
    VkattnPlan* plan = nullptr;
    check_invalid(call(vkattn_plan_create, c, &p, nullptr, nullptr), "plan");
    check_invalid(call(vkattn_plan_create, nullptr, &p, nullptr, &plan), "context");
    check_invalid(call(vkattn_plan_create, c, nullptr, nullptr, &plan), "problem");
    CHECK(plan == nullptr);
    VkattnOptions o = options();
    o.struct_size = 1;
    check_invalid(create_with(c, p, &o), "options.struct_size");
    const auto with = [&](const char* VkattnOptions::*field, const char* text) {
        o = options();
        o.*field = text;
        return create_with(c, p, &o);
    };
    const Seen unknown = with(&VkattnOptions::kernel, "warp");
    check_invalid(unknown, "options.kernel");
    CHECK(std::strstr(unknown.error.message, "tiles") != nullptr);
    check_invalid(with(&VkattnOptions::tuning, "lines=4"), "options.tuning");
    const char* const large =
        "threads=4096,lanes=1,rows=4,cols=4,chunk=4,p_blocks=1,v_keys=4,prefetch=0,unroll=1";
    CHECK(with(&VkattnOptions::tuning, large).returned == VKATTN_UNSUPPORTED);
    const std::string endless(5000, 'k');  // longer than any field of the error: cut, not overrun
    check_invalid(with(&VkattnOptions::kernel, endless.c_str()), "options.kernel");
    check_invalid(with(&VkattnOptions::tuning, endless.c_str()), "options.tuning");
    CHECK(with(&VkattnOptions::kernel, "auto").returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "scratch and description of a plan") {
    const Plan plan(c, good_problem());
    VkattnScratch scratch;
    vkattn_scratch_init(&scratch);
    check_invalid(call(vkattn_plan_scratch, nullptr, &scratch), "plan");
    check_invalid(call(vkattn_plan_scratch, plan.get(), nullptr), "scratch");
    scratch.struct_size = 2;
    check_invalid(call(vkattn_plan_scratch, plan.get(), &scratch), "scratch.struct_size");
    vkattn_scratch_init(&scratch);
    CHECK(call(vkattn_plan_scratch, plan.get(), &scratch).returned == VKATTN_OK);
    CHECK(scratch.alignment_bytes > 0);

    size_t length = 0;
    check_invalid(call(vkattn_plan_describe, nullptr, nullptr, 0u, &length), "plan");
    check_invalid(call(vkattn_plan_describe, plan.get(), nullptr, 10u, &length), "text");
    REQUIRE(call(vkattn_plan_describe, plan.get(), nullptr, 0u, &length).returned == VKATTN_OK);
    const std::string whole = plan.describe();
    CHECK(length == whole.size());
    CHECK(whole.front() == '{');
    CHECK(whole.find("\"kernel\":\"tiles\"") != whole.npos);
    CHECK(whole.find('\n') == whole.npos);
    for (const size_t capacity : {size_t{1}, size_t{2}, size_t{17}, length, length + 1, length + 10}) {
        std::string text(length + 20, '#');
        size_t again = 0;
        CHECK(call(vkattn_plan_describe, plan.get(), text.data(), capacity, &again).returned == VKATTN_OK);
        CHECK(again == length);
        const size_t written = std::min(capacity - 1, length);
        CHECK(text.substr(0, written) == whole.substr(0, written));
        CHECK(text[written] == 0);
        CHECK(text.find_first_not_of('#', written + 1) == text.npos);
    }
    CHECK(call(vkattn_plan_describe, plan.get(), nullptr, 0u, nullptr).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "recording refuses null and what the plan cannot use") {
    VkattnProblem p = good_problem();
    p.query_strides = {6000000000, 80, 8};
    p.alignment_bytes = 16;
    const Plan plan(c, p);
    const Buffer memory = runtime.allocate(1 << 16);
    VkattnForwardArgs args = forward_args();
    args.query = args.key = args.value = memory.address();
    args.out = memory.address() + (1 << 14);
    args.scratch_buffer = memory.handle();
    args.scratch_offset = 1 << 15;
    args.scratch_address = memory.address() + args.scratch_offset;
    const auto refused = [&](const char* field, const std::function<void(VkattnForwardArgs&)>& spoil) {
        VkattnForwardArgs spoilt = args;
        spoil(spoilt);
        CAPTURE(std::string(field));
        check_invalid(call(vkattn_cmd_forward, commands, plan.get(), &spoilt), field);
    };
    using A = VkattnForwardArgs;
    refused("args.scratch_address", [](A& a) { a.scratch_address = 0; });
    refused("args.scratch_address", [](A& a) { a.scratch_address += 16; });
    for (const int64_t off : {-256, -1, 2, 4, 256})
        refused("args.scratch_offset", [&](A& a) { a.scratch_offset += static_cast<uint64_t>(off); });
    refused("args.scratch_offset", [](A& a) { a.scratch_address += 256; });
    refused("args.scratch_bytes", [](A& a) { a.scratch_bytes = 1; });
    const uint64_t needed = plan.scratch().size_bytes;
    refused("args.scratch_bytes", [&](A& a) { a.scratch_bytes = needed - 1; });
    for (const auto& [field, tensor] : {std::pair{"args.query", &A::query},
                                        {"args.key", &A::key},
                                        {"args.value", &A::value},
                                        {"args.out", &A::out}}) {
        refused(field, [at = tensor](A& a) { a.*at = 0; });
        for (const uint32_t off : {1u, 2u, 4u, 8u, 12u})
            refused(field, [at = tensor, off](A& a) { a.*at += off; });
    }
    refused("args.lse", [](A& a) { a.lse = 6; });
    refused("args.struct_size", [](A& a) { a.struct_size = 0; });
    check_invalid(call(vkattn_cmd_forward, nullptr, plan.get(), &args), "command_buffer");
    check_invalid(call(vkattn_cmd_forward, commands, nullptr, &args), "plan");
    check_invalid(call(vkattn_cmd_forward, commands, plan.get(), nullptr), "args");
    check_invalid(call(vkattn_cmd_forward_range, nullptr, plan.get(), &args, 0u, 1u), "command_buffer");
    check_invalid(call(vkattn_cmd_forward_range, commands, nullptr, &args, 0u, 1u), "plan");
    check_invalid(call(vkattn_cmd_forward_range, commands, plan.get(), nullptr, 0u, 1u), "args");
    CHECK(between.take_commands().empty());
    for (const uint64_t told : {uint64_t{0}, needed, needed + 1}) {
        args.scratch_bytes = told;
        CHECK(call(vkattn_cmd_forward, commands, plan.get(), &args).returned == VKATTN_OK);
    }
    CHECK_FALSE(between.take_commands().empty());
}

TEST_CASE_FIXTURE(Abi, "a plan without scratch looks at nothing that is said of it") {
    const Plan plan(c, good_problem());
    REQUIRE(plan.scratch().size_bytes == 0);
    VkattnForwardArgs args = forward_args();
    args.query = args.key = args.value = 1 << 20;
    args.out = 2 << 20;
    args.scratch_offset = args.scratch_address = args.scratch_bytes = 3;
    CHECK(call(vkattn_cmd_forward, commands, plan.get(), &args).returned == VKATTN_OK);
}

TEST_CASE_FIXTURE(Abi, "empty tensors need no addresses") {
    const VkattnForwardArgs nothing = forward_args();
    for (const char* text : {"b=0 s=5", "sq=0 skv=5", "b=0 s=5 kernel=materialized"}) {
        const Case empty = parse_case(text, "here");
        const Plan plan(c, empty.problem, empty.options());
        CAPTURE(std::string(text));
        CHECK(call(vkattn_cmd_forward, commands, plan.get(), &nothing).returned == VKATTN_OK);
    }
    CHECK(between.take_commands().empty());
    // No keys, but an output: the address of key and value may be null, the others may not.
    const Plan no_keys(c, parse_case("sq=5 skv=0", "here").problem);
    check_invalid(call(vkattn_cmd_forward, commands, no_keys.get(), &nothing), "args.query");
    VkattnForwardArgs args = nothing;
    args.query = 4;
    check_invalid(call(vkattn_cmd_forward, commands, no_keys.get(), &args), "args.out");
}

TEST_CASE_FIXTURE(OnDevice, "a device is found by index, part of its name, or UUID") {
    const DeviceInfo info = device.info();
    std::string upper = info.name.substr(0, 5);
    for (char& letter : upper) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    const std::string dashed = fmt::format("{}-{}", info.uuid.substr(0, 8), info.uuid.substr(8));
    for (const std::string& name : {std::to_string(info.index), upper, dashed}) {
        RuntimeOptions options;
        options.device = name;
        CAPTURE(name);
        CHECK(Runtime(options).device().uuid == info.uuid);
    }
    CHECK(list_devices().at(info.index).name == info.name);
}

TEST_CASE_FIXTURE(OnDevice, "the runtime says what is wrong in one line") {
    for (const char* name : {"no such device", "99", "00000000000000000000000000000000"}) {
        RuntimeOptions options;
        options.device = name;
        const std::string error = error_of([&] { const Runtime made(options); });
        CAPTURE(error);
        CHECK(error.find(name) != error.npos);
        CHECK(error.find(device.info().name) != error.npos);  // what there is
        CHECK(error.find('\n') == error.npos);
    }
    RuntimeOptions options;
    options.extra_extensions = {"VK_EXT_no_such_extension"};
    CHECK(error_of([&] { const Runtime made(options); }) != "");

    const Buffer buffer = runtime.allocate(16), empty = runtime.allocate(0);
    std::byte data[32] = {};
    const auto upload = [&](const Buffer& to, size_t bytes, uint64_t offset) {
        return error_of([&] { runtime.upload(to, std::span(data).first(bytes), offset); });
    };
    const auto download = [&](const Buffer& from, size_t bytes, uint64_t offset) {
        return error_of([&] { runtime.download(from, std::span(data).first(bytes), offset); });
    };
    for (const auto& move : {std::function(upload), std::function(download)}) {
        CHECK(move(buffer, 16, 0) == "");
        CHECK(move(buffer, 0, 16) == "");
        CHECK(move(buffer, 17, 0) != "");
        CHECK(move(buffer, 16, 1) != "");
        CHECK(move(buffer, 1, 16) != "");
        CHECK(move(buffer, 1, UINT64_MAX) != "");
        CHECK(move(empty, 1, 0) != "");
        CHECK(move(empty, 0, 0) == "");
    }
    CHECK(empty.address() == 0);
    const std::string too_much = error_of([&] { runtime.allocate(uint64_t{1} << 50); });
    CHECK(too_much.find("1125899906842624") != too_much.npos);
    device.take_messages();  // the layer, too, finds 2^50 bytes too many
}
