// What the planner refuses: with the status, the field and the reason that are right, never silently.
#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "plan/tuning.hpp"
#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

VkattnProblem simple() {
    return make_problem({64, 64}, {1, 2, 1, 97, 97});
}

// "" if the planner refuses with this status, field and text in the message, else what it did.
std::string refusal_flaw(const DeviceCaps& caps, const Problem& problem, const Options& options,
                         VkattnStatus status, const std::string& field, const std::string& text) {
    const auto plan = make_plan(caps, problem, options);
    if (plan) return "planned: " + plan->kernel + " " + plan->tuning;
    const core::Failure& f = plan.failure();
    if (f.status != status || f.field != field || f.message.find(text) == std::string::npos ||
        f.message.empty() || f.message.find('\n') != std::string::npos)
        return fmt::format("status {} field '{}' message '{}'", static_cast<int>(f.status), f.field,
                           f.message);
    return "";
}

std::string unsupported(const DeviceCaps& caps, const Problem& p, const std::string& field,
                        const std::string& text, const Options& options = {}) {
    return refusal_flaw(caps, p, options, VKATTN_UNSUPPORTED, field, text);
}

std::string invalid(const Options& options, const std::string& field, const std::string& text) {
    return refusal_flaw(profile("nvidia_h200"), resolved(simple()), options, VKATTN_INVALID_ARGUMENT, field,
                        text);
}

}  // namespace

TEST_CASE("refusal: devices without buffer device addresses") {
    const Problem p = resolved(simple());
    std::set<std::string> refused;
    for (const Profile& device : profiles()) {
        if (device.caps.buffer_device_address) continue;
        refused.insert(device.name);
        DeviceCaps caps = device.caps;
        INFO(device.name);
        const bool old = caps.api_version < core::version_1_2;
        CHECK_EQ(unsupported(caps, p, "device", old ? "Vulkan 1.2" : "bufferDeviceAddress"), "");
        caps.api_version = core::version_1_2;
        CHECK_EQ(unsupported(caps, p, "device", "bufferDeviceAddress"), "");
        CHECK_NE(core::refuse_device(caps), "");
    }
    CHECK(refused == std::set<std::string>{"adreno_702", "mali_g52", "powervr_bxs"});
    for (const Profile& device : usable_devices()) CHECK_EQ(core::refuse_device(device.caps), "");
}

TEST_CASE("refusal: a device below the floor") {
    const Problem p = resolved(simple());
    DeviceCaps caps = smallest_device();
    caps.api_version -= 1u << 12;
    CHECK_EQ(unsupported(caps, p, "device", "Vulkan 1.2"), "");
    caps = smallest_device();
    caps.buffer_device_address = false;
    CHECK_EQ(unsupported(caps, p, "device", "bufferDeviceAddress"), "");
    caps = smallest_device();
    caps.max_push_constant_bytes = 127;
    CHECK_EQ(unsupported(caps, p, "device", "push constants"), "");
    caps = smallest_device();
    caps.max_shared_bytes = 1024;
    CHECK_EQ(unsupported(caps, p, "", "bytes of shared memory, the device has 1024"), "");
    caps = smallest_device();
    caps.max_invocations = 4;
    CHECK_EQ(unsupported(caps, p, "", "invocations, the device has 4"), "");
    caps = smallest_device();
    caps.max_workgroup_size[0] = 4;
    CHECK_EQ(unsupported(caps, p, "", "invocations, the device has 4"), "");
}

TEST_CASE("refusal: what the baseline does not do") {
    using Change = std::function<void(VkattnProblem&, Options&)>;
    const std::vector<std::pair<const char*, Change>> beyond{
        {"float16", [](VkattnProblem& p, Options&) { p.dtype = VKATTN_DTYPE_FLOAT16; }},
        {"bfloat16", [](VkattnProblem& p, Options&) { p.dtype = VKATTN_DTYPE_BFLOAT16; }},
        {"mask", [](VkattnProblem& p, Options&) { set_mask(p, VKATTN_MASK_BOOL, MaskShape::whole); }},
        {"mask", [](VkattnProblem& p, Options&) { set_mask(p, VKATTN_MASK_FLOAT, MaskShape::one); }},
        {"kv lengths", [](VkattnProblem& p, Options&) { p.kv_lengths = 1; }},
        {"offsets per batch", [](VkattnProblem& p, Options&) { p.align = VKATTN_ALIGN_OFFSETS; }},
        {"parts of the keys", [](VkattnProblem&, Options& o) { o.num_splits = 2; }},
        {"cost", [](VkattnProblem&, Options& o) { o.max_dispatch_flops = UINT64_MAX; }},
        {"batch-invariant", [](VkattnProblem&, Options& o) { o.batch_invariant = true; }},
    };
    for (const Profile& device : usable_devices())
        for (const auto& [says, change] : beyond) {
            VkattnProblem p = simple();
            p.alignment_bytes = 0;
            Options options;
            change(p, options);
            const std::string text = says;
            INFO(device.name << " " << text);
            CHECK_EQ(flaw_of(device.caps, resolved(p), planned(device.caps, resolved(p), options), options),
                     "");
            options.kernel = "materialized";
            CHECK_EQ(unsupported(device.caps, resolved(p), "options.kernel", text, options), "");
        }
}

TEST_CASE("refusal: a limit that not even a tile meets, or too many dispatches would") {
    const DeviceCaps& caps = profile("lavapipe");
    Options options;
    options.max_dispatch_flops = 1000;
    const char* field = "options.max_dispatch_flops";
    CHECK_EQ(unsupported(caps, resolved(simple()), field, "one workgroup may cost", options), "");
    CHECK_EQ(unsupported(caps, resolved(simple()), field, "the limit is 1000", options), "");
    options.max_dispatch_flops = 100'000'000;
    const Problem p = resolved(make_problem({64, 64}, {64, 32, 32, 65536, 4096}));
    CHECK_EQ(unsupported(caps, p, field, "at most 65536", options), "");
}

TEST_CASE("refusal: scores too large for the baseline") {
    const Problem p = resolved(make_problem({64, 64}, {1, 1, 1, 65537, 65537}));
    const std::string need = fmt::format("{} bytes of scratch", matrix_bytes(p));
    Options options = kernel("materialized");
    for (const Profile& device : usable_devices())
        CHECK_EQ(unsupported(device.caps, p, "", need + ", the limit is 1073741824", options), "");
    options.max_scratch_bytes = matrix_bytes(p) - 1;
    DeviceCaps caps = profile("apple_m1");
    CHECK_EQ(unsupported(caps, p, "", fmt::format("the limit is {}", matrix_bytes(p) - 1), options), "");
    caps.max_buffer_bytes = 1000000;  // the device's limit counts too
    CHECK_EQ(unsupported(caps, p, "", "the limit is 1000000", options), "");
    caps.max_buffer_bytes = options.max_scratch_bytes = uint64_t{1} << 40;  // and what 32 bits count of vec4
    const Problem more = resolved(make_problem({64, 64}, square(1, 1, 1 << 18)));
    CHECK_EQ(unsupported(caps, more, "", "the limit is 68719476736", options), "");
}

TEST_CASE("refusal: unknown kernels") {
    std::string list = "auto";
    for (const std::string& name : core::kernel_names()) list += ", " + name;
    for (const char* name : {"tile", "Tiles", "tiles ", "materialised", "AUTO", "0"}) {
        CHECK_EQ(invalid(kernel(name), "options.kernel", list), "");
        CHECK_EQ(invalid(kernel(name), "options.kernel", fmt::format("'{}'", name)), "");
    }
}

TEST_CASE("refusal: malformed tuning") {
    const std::vector<std::pair<const char*, const char*>> cases{
        {"threads", "threads"},            // no number
        {"256", "256"},                    // no name
        {"=5", "=5"},                      //
        {"speed=3", "speed"},              // unknown names
        {"THREADS=64", "THREADS"},         //
        {"threads =64", "threads "},       //
        {" threads=64", " threads"},       //
        {"threads=", "whole number"},      // no whole number
        {"threads=abc", "whole number"},   //
        {"threads=8x", "whole number"},    //
        {"threads=8 ", "whole number"},    //
        {"threads=-8", "whole number"},    //
        {"threads=+8", "whole number"},    //
        {"threads=1.5", "whole number"},   //
        {"threads=0x40", "whole number"},  //
        {"threads==8", "whole number"},    //
        {"threads=4294967296", "whole number"},
        {"threads=64,lanes=1,threads=64", "threads is named twice"},
        {"threads=8;lanes=1", "whole number"},
        {",", "''"},                         // empty items
        {",prefetch=0", "''"},               //
        {"prefetch=0,,prefetch=1", "''"},    //
        {"threads=0", "threads = 0"},        // out of range
        {"lanes=0", "lanes = 0"},            //
        {"rows=0", "rows = 0"},              //
        {"cols=0", "cols = 0"},              //
        {"chunk=0", "chunk = 0"},            //
        {"p_blocks=0", "p_blocks = 0"},      //
        {"v_keys=0", "v_keys = 0"},          //
        {"unroll=0", "unroll = 0"},          //
        {"threads=4097", "threads = 4097"},  //
        {"chunk=4294967292", "4294967292"},  //
        {"prefetch=2", "prefetch"},          //
        {"rolled=2", "rolled"},              //
        {"prefetch=1,rolled=1", "exclude"},  //
    };
    for (const auto& [given, named] : cases)
        for (const char* name : {"auto", "tiles", "materialized"}) {
            const char *text = given, *says = named;  // clang 14 does not capture bindings
            INFO(text << " " << name);
            CHECK_EQ(invalid(tuning(text, name), "options.tuning", says), "");
        }
}

TEST_CASE("refusal: of what a caller wrote a message says a short piece, in one line") {
    const std::string longest(1000, 'x');
    for (const auto& [text, says] : {std::pair<std::string, std::string>{"ti\nles\t", "'ti?les?'"},
                                     {"\xc3\xa4", "'?\?'"},
                                     {longest, "'" + longest.substr(0, 40) + "...'"}}) {
        const std::string &wrong = text, &quoted = says;
        CHECK_EQ(invalid(kernel(wrong.c_str()), "options.kernel", quoted), "");
        for (const char* name :
             {"tiles", "rows", "matrix", "matrix_khr", "rows_dot", "tiles_dot", "materialized"})
            for (const std::string& item : {wrong, "subgroups=" + wrong, "threads=" + wrong}) {
                const auto plan =
                    make_plan(matrix_device("nvidia_h200"),
                              resolved(make_problem({64, 64}, {1, 2, 1, 1, 97}, Layout::contiguous, 4,
                                                    VKATTN_DTYPE_FLOAT16)),
                              tuning(item, name));
                REQUIRE_FALSE(plan);
                CHECK_LT(plan.failure().message.size(), sizeof(VkattnError::message));
                CHECK_EQ(plan.failure().message.find_first_of("\n\t"), std::string::npos);
            }
    }
}

TEST_CASE("refusal: tuning of one kernel for the other") {
    const DeviceCaps& caps = profile("nvidia_h200");
    const Problem few = resolved(make_problem({64, 64}, {1, 2, 1, 1, 97}));
    const auto bad = [&](const char* name, const char* text, const char* says) {
        CHECK_EQ(refusal_flaw(caps, few, tuning(text, name), VKATTN_INVALID_ARGUMENT, "options.tuning", says),
                 "");
    };
    bad("rows", "cols=4", "'cols=4' is not one of threads, lanes, rows, prefetch, unroll, rolled");
    bad("rows", "rows=6", "multiple of 4");
    bad("rows", "unroll=3", "unroll does not divide lanes");
    bad("rows", "rolled=2", "rolled");
    bad("rows", "lanes=7", "multiple of lanes");
    bad("tiles", "cols=0,unroll=1", "cols = 0");  // which would make it the other kernel's
    CHECK(make_plan(caps, few, tuning("threads=32,lanes=4,rows=4,unroll=1", "rows")));
    CHECK_EQ(planned(caps, few, tuning("cols=8")).kernel, "tiles");
}

TEST_CASE("refusal: tuning numbers that do not go together") {
    const core::TileNumbers good = parse_numbers(
        "threads=64,lanes=8,rows=8,cols=16,chunk=16,p_blocks=2,v_keys=32,prefetch=0,unroll=8,rolled=0");
    REQUIRE(make_plan(profile("nvidia_h200"), resolved(simple()), tuning(core::to_text(good))));
    const auto refused = [&](auto field, uint32_t value, const char* says) {
        core::TileNumbers n = good;
        n.*field = value;
        INFO(core::to_text(n));
        CHECK_NE(numbers_flaw(n), "");
        CHECK_EQ(invalid(tuning(core::to_text(n)), "options.tuning", says), "");
    };
    using Numbers = core::TileNumbers;
    refused(&Numbers::lanes, 3, "multiple of lanes");
    refused(&Numbers::lanes, 128, "multiple of lanes");
    refused(&Numbers::threads, 60, "multiple of lanes");
    refused(&Numbers::rows, 6, "multiples of 4");
    refused(&Numbers::rows, 1, "multiples of 4");
    refused(&Numbers::cols, 18, "multiples of 4");
    refused(&Numbers::chunk, 10, "multiples of 4");
    refused(&Numbers::v_keys, 2, "multiples of 4");
    refused(&Numbers::p_blocks, 3, "cols / 4");
    refused(&Numbers::p_blocks, 8, "cols / 4");
    refused(&Numbers::v_keys, 24, "v_keys does not divide");
    refused(&Numbers::v_keys, 128, "v_keys does not divide");
    refused(&Numbers::unroll, 3, "unroll does not divide");
    refused(&Numbers::unroll, 12, "unroll does not divide");
    refused(&Numbers::prefetch, 7, "prefetch");
    refused(&Numbers::rolled, 7, "rolled");
}

TEST_CASE("refusal: addresses that differ between invocations, where a compiler does not survive them") {
    DeviceCaps caps = profile("lavapipe");
    caps.subgroup_size = 16;  // quirk_no_divergent_addresses
    const Problem p = resolved(simple());
    for (const char* const kernel : {"auto", "tiles", "materialized"})
        CHECK_EQ(unsupported(caps, p, "options.tuning", "rolled = 0", tuning("rolled=0", kernel)), "");
    for (const char* const kernel : {"tiles", "materialized"}) {
        const auto plan = make_plan(caps, p, make_backward(p), tuning("rolled=0", kernel));
        REQUIRE_FALSE(plan);
        CHECK_EQ(plan.failure().field, "options.tuning");
    }
    CHECK(make_plan(caps, resolved(make_problem({64, 64}, {1, 2, 1, 1, 97})), tuning("rolled=0", "rows")));
}

// What a case of another device names is no fault of this one: conformance then skips the case.
TEST_CASE("refusal: tuning of another device's matrix unit") {
    const DeviceCaps caps = matrix_device("amd_navi31");
    VkattnProblem text =
        make_problem({64, 64}, {1, 2, 2, 97, 97}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16);
    const auto refused = [&](const char* numbers, const char* says) {
        return unsupported(caps, resolved(text), "options.tuning", says, tuning(numbers, "matrix"));
    };
    CHECK_EQ(refused("move=0", "known layout"), "");
    CHECK_EQ(refused("move=1", "VK_NV_cooperative_matrix2"), "");
    CHECK_EQ(refused("turned=1", "turned=1 needs"), "");
    CHECK_EQ(refused("halves=2", "halves=2 needs"), "");
    set_mask(text, VKATTN_MASK_BOOL, MaskShape::whole);
    CHECK_EQ(refused("running=0", "masks need"), "");
}

TEST_CASE("refusal: tuning too large for the device") {
    const Problem p = resolved(simple());
    for (const Profile& device : usable_devices()) {
        INFO(device.name);
        CHECK_EQ(unsupported(device.caps, p, "options.tuning", "invocations", tuning("threads=4096")), "");
        CHECK_EQ(unsupported(device.caps, p, "options.tuning", "shared memory", tuning("chunk=4096")), "");
        const core::TileNumbers wraps = parse_numbers(  // 2^32 bytes and 32 KiB more
            "threads=256,lanes=256,rows=4,cols=4096,chunk=1024,p_blocks=1,v_keys=4,prefetch=0,unroll=1,"
            "rolled=0");
        const char* says = device.caps.max_invocations < 256 ? "invocations" : "shared memory";
        CHECK_EQ(unsupported(device.caps, p, "options.tuning", says, tuning(core::to_text(wraps))), "");
    }
    DeviceCaps large = smallest_device();
    large.max_invocations = large.max_workgroup_size[0] = 1024;
    large.max_shared_bytes = 232448;
    const core::TileNumbers wraps = parse_numbers(  // 2^32 vec4 and 8,192 more
        "threads=1024,lanes=1024,rows=4,cols=4096,chunk=4096,p_blocks=1,v_keys=4,prefetch=0,unroll=4,"
        "rolled=0");
    CHECK_EQ(unsupported(large, p, "options.tuning", "shared memory", tuning(core::to_text(wraps))), "");
    DeviceCaps caps = smallest_device();  // at the limits exactly, and one below
    const core::TileNumbers n = parse_numbers(
        "threads=128,lanes=8,rows=4,cols=4,chunk=16,p_blocks=1,v_keys=16,prefetch=0,unroll=2,rolled=0");
    caps.max_shared_bytes = pool_of_maps(n, 64) * 16;
    CHECK(make_plan(caps, p, tuning(core::to_text(n))));
    caps.max_shared_bytes--;
    CHECK_EQ(unsupported(caps, p, "options.tuning", "shared memory", tuning(core::to_text(n))), "");
    caps = smallest_device();
    caps.max_invocations = 127;
    CHECK_EQ(unsupported(caps, p, "options.tuning", "128 invocations, the device has 127",
                         tuning(core::to_text(n))),
             "");
}

TEST_CASE("refusal: rows whose pipelines failed are passed over, to the last") {
    struct Way {
        core::KernelKind rows;
        const char* kernel;
        bool backward;
    };
    for (const Profile& device : usable_devices())
        for (const uint32_t dim : {1u, 64u, 128u, 256u, 576u})
            for (const Way way : {Way{core::KernelKind::tiles, "auto", false},
                                  Way{core::KernelKind::tiles, "materialized", false},
                                  Way{core::KernelKind::backward, "auto", true}}) {
                const Problem p = resolved(make_problem({dim, dim}, {1, 2, 1, 97, 97}));
                const core::Backward b = make_backward(p);
                Options options = kernel(way.kernel);
                size_t least = 0, count = 0;
                const core::TuningRow* rows = core::tuning_rows(way.rows, count);
                INFO(device.name << " " << dim << " " << way.kernel);
                const auto plan_of = [&] {
                    return way.backward ? make_plan(device.caps, p, b, options)
                                        : make_plan(device.caps, p, options);
                };
                auto plan = plan_of();
                for (; plan && options.rejected_rows.size() <= count; plan = plan_of()) {
                    size_t row = 0;
                    while (row < count && plan->tuning_row != rows[row].name) row++;
                    CHECK_LT(row, count);
                    CHECK_GE(row, least);
                    CHECK_EQ(
                        way.backward ? flaw_of(device.caps, p, b, *plan) : flaw_of(device.caps, p, *plan),
                        "");
                    least = row + 1;
                    options.rejected_rows.push_back(plan->tuning_row);
                }
                REQUIRE_FALSE(plan);
                CHECK_GE(options.rejected_rows.size(), 1);
                CHECK_EQ(plan.failure().status, VKATTN_UNSUPPORTED);
                CHECK_EQ(plan.failure().field, "");
                CHECK_EQ(plan.failure().message.find("no tile shape fits this device"), 0);
            }
}

TEST_CASE("refusal: a plan says why not the other kernels") {
    using Reasons = std::vector<std::pair<std::string, std::string>>;
    const auto reasons = [](const Problem& p, const Options& options) {
        const Plan plan = planned(profile("lavapipe"), p, options);
        Reasons all{{plan.kernel, ""}};
        for (const core::Refusal& r : plan.refused) all.emplace_back(r.kernel, r.reason);
        return all;
    };
    const Problem many = resolved(simple()), few = resolved(make_problem({64, 64}, {1, 2, 1, 1, 97}));
    const char *comparison = "only by name: for comparison", *another = "another kernel was asked for",
               *cpu = "only by name: CPUs have no matrix unit, `tiles` is faster",
               *no_dot = "only by name: CPUs have no 16-bit dot products, `tiles` is faster";
    CHECK(reasons(many, {}) ==
          Reasons{{"tiles", ""},
                  {"rows_dot", no_dot},
                  {"rows",
                   "it is for at most 8 query rows here, those of the 2 query heads of a key head counted "
                   "together"},
                  {"matrix", cpu},
                  {"matrix_khr", comparison},
                  {"tiles_dot", no_dot},
                  {"materialized", comparison}});
    CHECK_EQ(unsupported(profile("lavapipe"), many, "options.kernel", "at most 8 query rows", kernel("rows")),
             "");
    CHECK(reasons(few, {}) == Reasons{{"rows", ""},
                                      {"rows_dot", no_dot},
                                      {"matrix", cpu},
                                      {"matrix_khr", comparison},
                                      {"tiles_dot", no_dot},
                                      {"tiles", "a preferred kernel fits"},
                                      {"materialized", comparison}});
    CHECK(reasons(few, kernel("materialized")) == Reasons{{"materialized", ""},
                                                          {"rows_dot", another},
                                                          {"rows", another},
                                                          {"matrix", another},
                                                          {"matrix_khr", another},
                                                          {"tiles_dot", another},
                                                          {"tiles", another}});
    Options invariant;
    invariant.batch_invariant = true;
    CHECK_EQ(reasons(few, invariant)[0].first, "tiles");
    invariant.kernel = "rows";
    CHECK_EQ(unsupported(profile("lavapipe"), few, "options.batch_invariant", "how many rows", invariant),
             "");
}

TEST_CASE("profiles: what a file says reaches the caps") {
    CHECK_EQ(profiles().size(), 30);
    const DeviceCaps& caps = profile("nvidia_h200");
    CHECK_EQ(caps.name, "NVIDIA H200");
    CHECK_EQ(caps.vendor_id, 0x10de);
    CHECK_EQ(caps.type, core::DeviceType::discrete);
    CHECK_EQ(caps.api_version, (1u << 22 | 4u << 12));
    CHECK_EQ(caps.subgroup_size, 32);
    CHECK_EQ(caps.max_shared_bytes, 49152);
    CHECK_EQ(caps.max_invocations, 1024);
    CHECK(caps.max_workgroup_size == std::array<uint32_t, 3>{1024, 1024, 64});
    CHECK(caps.max_workgroup_count == std::array<uint32_t, 3>{2147483647, 65535, 65535});
    CHECK_EQ(caps.max_push_constant_bytes, 256);
    CHECK_EQ(caps.max_buffer_bytes, 4292870144);
    CHECK(caps.buffer_device_address);
    CHECK_EQ(profile("powervr_bxs").max_buffer_bytes, 18957385728);
    CHECK_EQ(profile("swiftshader").type, core::DeviceType::cpu);
    CHECK(caps.storage_16bit);
    CHECK_FALSE(profile("swiftshader").storage_16bit);
}

TEST_CASE("profiles: a missing, repeated or malformed key is named with its file") {
    const std::string good =
        "device=\"A B\" api=1.2 vendor=0x10de type=2\n sg=8 [8..8] shmem=1 wginv=2 wgsize=3,4,5 "
        "wgcount=6,7,8 pc=128\n"
        " maxAlloc=4294967296 bda=1 s16=0 x=\"(\" KHR A=f16 A=f16\n";
    REQUIRE_EQ(parse_profile(good, "f.txt").name, "A B");
    const auto message = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        try {
            parse_profile(text, "f.txt");
        } catch (const std::runtime_error& error) {
            return std::string(error.what());
        }
        return "accepted: " + text;
    };
    for (const char* key : {"device", "api", "vendor", "type", "sg", "shmem", "wginv", "wgsize", "wgcount",
                            "pc", "maxAlloc", "bda", "s16"}) {
        const std::string assigned = std::string(key) + "=";
        CHECK_EQ(message(assigned, "other="), fmt::format("f.txt: {} is missing", key));
        CHECK_EQ(message(assigned, assigned + "1 " + assigned),
                 fmt::format("f.txt: {} stands there twice", key));
        CHECK_EQ(message(assigned, assigned + "z").rfind(fmt::format("f.txt: {} ", key), 0), 0);
    }
    CHECK_EQ(message("wgsize=3,4,5", "wgsize=3,4"), "f.txt: wgsize does not hold three numbers");
    CHECK_EQ(message("wgsize=3,4,5", "wgsize=3,4,5,6"), "f.txt: wgsize does not hold three numbers");
    CHECK_EQ(message("shmem=1", "shmem=4294967296"), "f.txt: shmem does not hold a number that fits");
    CHECK_EQ(message("type=2", "type=5"), "f.txt: type is not a device type");
    CHECK_EQ(message("bda=1", "bda=2"), "f.txt: bda is neither 0 nor 1");
    CHECK_EQ(message("api=1.2", "api=12"), "f.txt: api is not major.minor");
    CHECK_EQ(message("x=\"(\"", "x=\"("), "f.txt: x has no closing quote");
    CHECK_THROWS_AS(load_profile("/nonexistent/f.txt"), std::runtime_error);
}
