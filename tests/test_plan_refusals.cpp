// What the planner refuses: with the status, the field and the reason that are right, never silently. Names and tunings
// that it does not take are in golden/choices.txt (test_plan_choices.cpp).
#include <doctest/doctest.h>

#include <functional>
#include <set>

#include <fmt/format.h>

#include "plan/tuning.hpp"
#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

enum class Way { forward, backward };
constexpr Way both[] = {Way::forward, Way::backward};

VkattnProblem simple() {
    return make_problem({64, 64}, {1, 2, 1, 97, 97});
}

core::Result<Plan> plan_of(Way way, const DeviceCaps& caps, const Problem& p, const Options& o = {}) {
    return way == Way::backward ? make_plan(caps, p, make_backward(p), o) : make_plan(caps, p, o);
}

// What becomes of a request: "planned", or "INVALID options.kernel: why".
std::string answer(Way way, const DeviceCaps& caps, const Problem& p, const Options& o = {}) {
    const auto plan = plan_of(way, caps, p, o);
    if (plan) return "planned";
    const core::Failure& f = plan.failure();
    if (f.message.empty() || f.message.find('\n') != std::string::npos) return "text: " + f.message;
    return fmt::format("{} {}: {}", f.status == VKATTN_INVALID_ARGUMENT ? "INVALID" : "UNSUPPORTED", f.field,
                       f.message);
}

// Checks that an answer has this status and field, and holds this text.
void check_says(const std::string& answer, const std::string& head, const std::string& text) {
    CHECK_MESSAGE(answer.starts_with(head + ": "), answer << " instead of " << head);
    CHECK_MESSAGE(answer.find(text) != std::string::npos, answer << " without " << text);
}

const std::string device_refused = "UNSUPPORTED device", kernel_refused = "UNSUPPORTED options.kernel",
                  too_large = "UNSUPPORTED options.tuning", bad_tuning = "INVALID options.tuning",
                  limit_refused = "UNSUPPORTED options.max_dispatch_flops";

}  // namespace

TEST_CASE("refusal: devices without buffer device addresses") {
    const Problem p = resolved(simple());
    std::set<std::string> refused;
    for (const Profile& device : profiles())
        for (const Way way : both) {
            INFO(device.name);
            DeviceCaps caps = device.caps;
            if (caps.buffer_device_address) {
                CHECK_EQ(answer(way, caps, p), "planned");
                continue;
            }
            refused.insert(device.name);
            const bool old = caps.api_version < core::version_1_2;
            check_says(answer(way, caps, p), device_refused, old ? "Vulkan 1.2" : "bufferDeviceAddress");
            caps.api_version = core::version_1_2;
            check_says(answer(way, caps, p), device_refused, "bufferDeviceAddress");
            CHECK_NE(core::refuse_device(caps), "");
        }
    CHECK(refused == std::set<std::string>{"adreno_702", "mali_g52", "powervr_bxs"});
    for (const Profile& device : usable_devices()) CHECK_EQ(core::refuse_device(device.caps), "");
}

TEST_CASE("refusal: a device below the floor") {
    const auto below = [](const std::string& head, const char* says, const auto& change) {
        DeviceCaps caps = smallest_device();
        change(caps);
        for (const Way way : both) check_says(answer(way, caps, resolved(simple())), head, says);
    };
    below(device_refused, "Vulkan 1.2", [](DeviceCaps& caps) { caps.api_version -= 1u << 12; });
    below(device_refused, "bufferDeviceAddress",
          [](DeviceCaps& caps) { caps.buffer_device_address = false; });
    below(device_refused, "push constants", [](DeviceCaps& caps) { caps.max_push_constant_bytes = 127; });
    below("UNSUPPORTED ", "bytes of shared memory, the device has 1024",
          [](DeviceCaps& caps) { caps.max_shared_bytes = 1024; });
    below("UNSUPPORTED ", "invocations, the device has 4",
          [](DeviceCaps& caps) { caps.max_invocations = 4; });
    below("UNSUPPORTED ", "invocations, the device has 4",
          [](DeviceCaps& caps) { caps.max_workgroup_size[0] = 4; });
}

TEST_CASE("refusal: what the baseline does not do, and all other kernels do") {
    using Change = std::function<void(VkattnProblem&, Options&)>;
    struct Beyond {
        const char* says;
        Change change;
        bool forward = true, backward = true;
    };
    const std::vector<Beyond> all{
        {"storage in float16", [](VkattnProblem& p, Options&) { p.dtype = VKATTN_DTYPE_FLOAT16; }},
        {"storage in bfloat16", [](VkattnProblem& p, Options&) { p.dtype = VKATTN_DTYPE_BFLOAT16; }},
        {"mask", [](VkattnProblem& p, Options&) { set_mask(p, VKATTN_MASK_BOOL, MaskShape::whole); }},
        {"mask", [](VkattnProblem& p, Options&) { set_mask(p, VKATTN_MASK_FLOAT, MaskShape::one); }},
        {"kv lengths", [](VkattnProblem& p, Options&) { p.kv_lengths = 1; }},
        {"query offsets", [](VkattnProblem& p, Options&) { p.align = VKATTN_ALIGN_OFFSETS; }},
        {"slopes", [](VkattnProblem& p, Options&) { p.slopes = VKATTN_SLOPES_PER_HEAD; }},
        {"limit of a dispatch's cost", [](VkattnProblem&, Options& o) { o.max_dispatch_flops = INT64_MAX; }},
        {"batch-invariant mode", [](VkattnProblem&, Options& o) { o.batch_invariant = true; }},
        {"parts of the keys", [](VkattnProblem&, Options& o) { o.num_splits = 2; }, true, false},
        {"softcap in its backward", [](VkattnProblem& p, Options&) { p.softcap = 3; }, false, true},
    };
    for (const Profile& device : usable_devices())
        for (const Beyond& beyond : all)
            for (const Way way : both) {
                if (way == Way::forward ? !beyond.forward : !beyond.backward) continue;
                VkattnProblem given = simple();
                given.alignment_bytes = 0;
                Options o;
                beyond.change(given, o);
                const Problem p = resolved(given);
                INFO(device.name << " " << std::string(beyond.says));
                CHECK_EQ(answer(way, device.caps, p, o), "planned");
                o.kernel = "materialized";
                check_says(answer(way, device.caps, p, o), kernel_refused,
                           std::string("the baseline has no ") + beyond.says);
            }
    const Problem p = resolved(simple());
    const auto dlse = make_plan(profile("lavapipe"), p, make_backward(p, true), kernel("materialized"));
    REQUIRE_FALSE(dlse);
    CHECK_EQ(dlse.failure().message, "the baseline has no gradient of lse");
    CHECK_EQ(answer(Way::backward, profile("lavapipe"), p, kernel("materialized")), "planned");
}

TEST_CASE("refusal: a limit that not even a tile meets, or too many dispatches would") {
    const DeviceCaps& caps = profile("lavapipe");
    const Problem p = resolved(simple()), large = resolved(make_problem({64, 64}, {64, 32, 32, 65536, 4096}));
    for (const Way way : both) {
        Options o;
        o.max_dispatch_flops = 1000;
        check_says(answer(way, caps, p, o), limit_refused, "one workgroup may cost");
        check_says(answer(way, caps, p, o), limit_refused, "the limit is 1000");
        o.max_dispatch_flops = way == Way::forward ? 100'000'000 : 250'000'000;
        check_says(answer(way, way == Way::forward ? caps : profile("nvidia_h200"), large, o), limit_refused,
                   "at most 65536");
    }
}

TEST_CASE("refusal: scratch that a limit or the device does not allow") {
    const Problem p = resolved(make_problem({64, 64}, {1, 1, 1, 65537, 65537}));
    const std::string need = fmt::format("{} bytes of scratch", matrix_bytes(p));
    const std::string head = "UNSUPPORTED ";
    Options o = kernel("materialized");
    for (const Profile& device : usable_devices())
        check_says(answer(Way::forward, device.caps, p, o), head, need + ", the limit is 1073741824");
    o.max_scratch_bytes = matrix_bytes(p) - 1;
    DeviceCaps caps = profile("apple_m1");
    check_says(answer(Way::forward, caps, p, o), head, fmt::format("the limit is {}", matrix_bytes(p) - 1));
    caps.max_buffer_bytes = 1000000;  // the device's limit counts too
    check_says(answer(Way::forward, caps, p, o), head, "the limit is 1000000");
    caps.max_buffer_bytes = o.max_scratch_bytes = uint64_t{1} << 40;  // and what 32 bits count of vec4
    const Problem more = resolved(make_problem({64, 64}, square(1, 1, 1 << 18)));
    check_says(answer(Way::forward, caps, more, o), head, "the limit is 68719476736");

    // The statistics of a backward's rows take 1 GiB here.
    const Problem rows = resolved(make_problem({1, 1}, {1, 64, 64, million, 1}));
    caps = profile("nvidia_h200");
    caps.max_buffer_bytes = (uint64_t{1} << 30) + 512;
    const Plan plan = planned(caps, rows, make_backward(rows));
    CHECK_EQ(plan.scratch_bytes, (uint64_t{1} << 30) + 512);
    CHECK_EQ(flaw_of(caps, rows, make_backward(rows), plan), "");
    caps.max_buffer_bytes--;
    CHECK_EQ(answer(Way::backward, caps, rows),
             "UNSUPPORTED : 16 bytes of scratch for each of 67108864 query rows exceed the device's largest "
             "allocation of 1073742335");
    // As many rows as there can be: the product must not wrap.
    const Problem most = resolved(make_problem({1, 1}, {32768, 65535, 65535, 1u << 28, 1}));
    check_says(answer(Way::backward, caps, most), head, "");
}

TEST_CASE("refusal: of what a caller wrote a message says a short piece, in one line") {
    const std::string longest(1000, 'x');
    const Problem p =
        resolved(make_problem({64, 64}, {1, 2, 1, 1, 97}, Layout::contiguous, 4, VKATTN_DTYPE_FLOAT16));
    const DeviceCaps& caps = matrix_device("nvidia_h200");
    for (const auto& [text, says] : {std::pair<std::string, std::string>{"ti\nles\t", "'ti?les?'"},
                                     {"\xc3\xa4", "'?\?'"},
                                     {longest, "'" + longest.substr(0, 40) + "...'"}}) {
        check_says(answer(Way::forward, caps, p, kernel(text.c_str())), "INVALID options.kernel", says);
        for (const char* name : {"tiles", "rows", "matrix", "matrix_khr", "matrix_rows", "rows_dot",
                                 "tiles_dot", "materialized"})
            for (const std::string& item : {text, "subgroups=" + text, "threads=" + text})
                for (const Way way : both) {
                    const auto plan = plan_of(way, caps, p, tuning(item, name));
                    REQUIRE_FALSE(plan);
                    CHECK_LT(plan.failure().message.size(), sizeof(VkattnError::message));
                    CHECK_EQ(plan.failure().message.find_first_of("\n\t"), std::string::npos);
                }
    }
}

TEST_CASE("refusal: tuning numbers that do not go together") {
    using N = core::TileNumbers;
    using Changes = std::initializer_list<std::pair<uint32_t N::*, uint32_t>>;
    const DeviceCaps& caps = profile("nvidia_h200");
    const Problem p = resolved(make_problem({64, 64}, {2, 4, 2, 97, 113}));
    N good = parse_numbers(
        "threads=64,lanes=8,rows=8,cols=16,chunk=16,p_blocks=2,v_keys=32,prefetch=0,unroll=8,rolled=0");
    CHECK_EQ(answer(Way::forward, caps, p, tuning(core::to_text(good))), "planned");
    const auto refused = [&](Way way, const Changes& changes, const char* says) {
        N n = good;
        n.v_keys = way == Way::backward ? 16 : 32;
        for (const auto& [field, value] : changes) n.*field = value;
        INFO(core::to_text(n));
        CHECK_NE(numbers_flaw(n, way == Way::backward), "");
        check_says(answer(way, caps, p, tuning(core::to_text(n))), bad_tuning, says);
    };
    for (const Way way : both) {
        refused(way, {{&N::lanes, 3}}, "multiple of lanes");
        refused(way, {{&N::rows, 6}}, "multiples of 4");
        refused(way, {{&N::cols, 18}}, "multiples of 4");
        refused(way, {{&N::chunk, 10}}, "multiples of 4");
        refused(way, {{&N::v_keys, 24}}, "v_keys does not divide");
        refused(way, {{&N::unroll, 3}}, "unroll does not divide");
        refused(way, {{&N::prefetch, 2}}, "prefetch");
    }
    constexpr Way forward = Way::forward, backward = Way::backward;
    refused(forward, {{&N::lanes, 128}}, "multiple of lanes");
    refused(forward, {{&N::threads, 60}}, "multiple of lanes");
    refused(forward, {{&N::rows, 1}}, "multiples of 4");
    refused(forward, {{&N::v_keys, 2}}, "multiples of 4");
    refused(forward, {{&N::p_blocks, 3}}, "cols / 4");
    refused(forward, {{&N::p_blocks, 8}}, "cols / 4");
    refused(forward, {{&N::v_keys, 128}}, "v_keys does not divide");
    refused(forward, {{&N::unroll, 12}}, "unroll does not divide");
    refused(forward, {{&N::rolled, 7}}, "rolled");
    refused(backward, {{&N::p_blocks, 3}}, "p_blocks does not divide");
    refused(backward, {{&N::q_slices, 0}}, "q_slices = 0");
    refused(backward, {{&N::kv_slices, 0}}, "kv_slices = 0");
    refused(backward, {{&N::kv_slices, 3}}, "neither 1 nor even");
    // 128 keys in groups of 12; in 2 groups of 64 invocations' 3; 96 keys in 24 groups, which 64 invocations do not
    // fill.
    refused(backward, {{&N::rows, 12}}, "do not share");
    refused(backward, {{&N::cols, 12}, {&N::rows, 4}, {&N::p_blocks, 1}, {&N::v_keys, 8}}, "do not share");
    refused(backward, {{&N::cols, 64}, {&N::p_blocks, 16}}, "p_blocks does not divide rows");
    refused(backward, {{&N::v_keys, 32}}, "p_blocks * threads / lanes");
    good.v_keys = 16;
    CHECK_EQ(answer(Way::backward, caps, p, tuning(core::to_text(good))), "planned");
}

// A wish that no device could fulfil is INVALID, and one that another device might is UNSUPPORTED, in both directions.
// The keys are those that mean the same in both.
TEST_CASE("refusal: forward and backward refuse a wish with the same status") {
    std::set<std::string> compared;
    std::vector<Profile> devices = matrix_devices();
    for (const Profile& device : matrix_devices())
        devices.push_back({device.name, probed(device.caps, true)});
    for (const Profile& device : devices)
        for (const VkattnDtype dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
            for (const char* name : {"tiles", "tiles_dot", "matrix", "matrix_khr"})
                for (const char* key : {"threads", "chunk", "prefetch", "rolled", "move", "turned",
                                        "l2_group_kib", "min_group_workgroups", "nonsense"})
                    for (const uint32_t value : {0u, 1u, 2u, 3u, 4u, 9u, 4096u, 0xffffffffu}) {
                        const Problem p = resolved(
                            make_problem({64, 64}, {2, 4, 2, 97, 113}, Layout::contiguous, 4, dtype));
                        Options o = tuning(fmt::format("{}={}", key, value), name);
                        if (dtype == VKATTN_DTYPE_FLOAT32) o.precision = VKATTN_PRECISION_FLOAT16;
                        const auto forward = plan_of(Way::forward, device.caps, p, o),
                                   backward = plan_of(Way::backward, device.caps, p, o);
                        const auto refused = [](const auto& plan) {
                            return !plan && plan.failure().field == std::string("options.tuning");
                        };
                        if (!refused(forward) || !refused(backward)) continue;
                        compared.insert(key);
                        INFO(device.name, " ", name, " ", o.tuning, ": ", forward.failure().message, "; ",
                             backward.failure().message);
                        CHECK_EQ(forward.failure().status, backward.failure().status);
                    }
    CHECK_EQ(compared.size(), 9);
}

TEST_CASE("refusal: tuning too large for the device") {
    const Problem p = resolved(simple());
    const std::string wraps_bytes =  // 2^32 bytes and 32 KiB more
        "threads=256,lanes=256,rows=4,cols=4096,chunk=1024,p_blocks=1,v_keys=4,prefetch=0,unroll=1,rolled=0";
    const std::string wraps_vec4 =  // 2^32 vec4 and 8,192 more
        "threads=1024,lanes=1024,rows=4,cols=4096,chunk=4096,p_blocks=1,v_keys=4,prefetch=0,unroll=4,rolled="
        "0";
    for (const Profile& device : usable_devices()) {
        INFO(device.name);
        for (const Way way : both) {
            check_says(answer(way, device.caps, p, tuning("threads=4096")), too_large, "invocations");
            check_says(answer(way, device.caps, p, tuning("chunk=4096")), too_large, "shared memory");
        }
        check_says(answer(Way::forward, device.caps, p, tuning(wraps_bytes)), too_large,
                   device.caps.max_invocations < 256 ? "invocations" : "shared memory");
    }
    DeviceCaps large = smallest_device();
    large.max_invocations = large.max_workgroup_size[0] = 1024;
    large.max_shared_bytes = 232448;
    check_says(answer(Way::forward, large, p, tuning(wraps_vec4)), too_large, "shared memory");
    // At the limits exactly, and one below.
    const core::TileNumbers n = parse_numbers(
        "threads=128,lanes=8,rows=4,cols=4,chunk=16,p_blocks=1,v_keys=16,prefetch=0,unroll=2,rolled=0");
    const Options o = tuning(core::to_text(n));
    DeviceCaps caps = smallest_device();
    for (const Way way : both) {
        const uint32_t pool = way == Way::forward ? pool_of_maps(n, 64) : pool_of_backward_maps(n, 64, 64);
        caps.max_shared_bytes = pool * 16;
        CHECK_EQ(answer(way, caps, p, o), "planned");
        caps.max_shared_bytes--;
        check_says(answer(way, caps, p, o), too_large, "shared memory");
    }
    caps = smallest_device();
    caps.max_invocations = 127;
    check_says(answer(Way::forward, caps, p, o), too_large, "128 invocations, the device has 127");
}

TEST_CASE("refusal: rows whose pipelines failed are passed over, to the last") {
    struct Rows {
        core::KernelKind kind;
        const char* kernel;
        Way way;
    };
    constexpr Rows all[] = {{core::KernelKind::tiles, "auto", Way::forward},
                            {core::KernelKind::tiles, "materialized", Way::forward},
                            {core::KernelKind::backward, "auto", Way::backward}};
    for (const Profile& device : usable_devices())
        for (const uint32_t dim : {1u, 64u, 128u, 256u, 576u})
            for (const Rows& of : all) {
                const Problem p = resolved(make_problem({dim, dim}, {1, 2, 1, 97, 97}));
                Options o = kernel(of.kernel);
                size_t least = 0, count = 0;
                const core::TuningRow* rows = core::tuning_rows(of.kind, count);
                INFO(device.name << " " << dim << " " << of.kernel);
                for (auto plan = plan_of(of.way, device.caps, p, o); plan;
                     plan = plan_of(of.way, device.caps, p, o)) {
                    size_t row = 0;
                    while (row < count && plan->tuning_row != rows[row].name) row++;
                    REQUIRE_LT(row, count);
                    REQUIRE_GE(row, least);
                    CHECK_EQ(of.way == Way::backward ? flaw_of(device.caps, p, make_backward(p), *plan)
                                                     : flaw_of(device.caps, p, *plan),
                             "");
                    least = row + 1;
                    o.rejected_rows.push_back(plan->tuning_row);
                }
                CHECK_GE(o.rejected_rows.size(), 1);
                CHECK_EQ(
                    answer(of.way, device.caps, p, o).find("UNSUPPORTED : no tile shape fits this device"),
                    0);
            }
}
