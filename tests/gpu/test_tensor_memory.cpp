// Where tensors may lie: in buffers of no other usage than an address, beside scratch that plans share; and where they
// may not. Strides of packed buffers are in tests/cases.
#include <fmt/format.h>

#include <list>
#include <random>

#include "api_calls.hpp"
#include "backward_run.hpp"
#include "case_suite.hpp"
#include "own_work.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

TEST_CASE_FIXTURE(Recorded, "tensors may lie in buffers with no other usage than their address") {
    if (!device.has_guard_pages()) return skip("buffers of this usage alone: they go with guard pages");
    for (const char* text : {"b=2 hq=4 hkv=2 sq=19 skv=41 causal", "h=2 sq=3 skv=57 dtype=f16 d=59"}) {
        const Job job(context.get(), text);
        CAPTURE(job.c.text);
        RunMemory scratch(device),
            tensors(device, Place::end, poison_word, VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT);
        const Tensor out = tensor_of(job.c, 3);
        VkattnForwardArgs args = forward_args();
        tensors.add_inputs(job.c, job.inputs, args);
        args.out = tensors.output("out", out, alignment_of(job.c, out));
        args.lse = tensors.output("lse", job.expected.exact.lse.size() * sizeof(float));
        scratch.add_scratch(job.plan, args);
        runtime.submit([&](VkCommandBuffer commands) { job.plan.cmd_forward(commands, args); });
        CHECK(compare({out.gather(tensors.content("out")), tensors.floats("lse")}, job.expected) == "");
        CHECK(tensors.damage() == "");
    }
}

TEST_CASE_FIXTURE(Recorded, "consecutive plans may share scratch, with a barrier between them") {
    // Parts of keys, an argument block, both, and a matrix of scores: each in the scratch of the one before.
    std::list<Job> jobs;
    for (const char* text :
         {"h=2 sq=7 skv=203 splits=3 dtype=f16", "b=2 h=2 sq=33 skv=57 lengths=20,57 causal",
          "b=2 h=2 sq=7 skv=203 splits=4 lengths=203,60", "h=2 s=33 kernel=materialized"})
        jobs.emplace_back(context.get(), text);
    uint64_t most = 0;
    for (const Job& job : jobs) {
        REQUIRE(job.plan.scratch().size_bytes != 0);
        most = std::max(most, job.plan.scratch().size_bytes);
    }
    const Buffer scratch = runtime.allocate(most + 256);
    runtime.fill(scratch, poison_word);
    std::list<Forward> forwards;
    for (int round = 0; round < 2; round++)
        for (const Job& job : jobs) forwards.push_back(job.forward(device));
    runtime.submit([&](VkCommandBuffer commands) {
        auto forward = forwards.begin();
        for (int round = 0; round < 2; round++)
            for (const Job& job : jobs) {
                if (forward != forwards.begin())
                    barrier_between(device, commands, attention_last, attention_first);
                VkattnForwardArgs args = (forward++)->args();
                args.scratch_buffer = scratch.handle();
                args.scratch_offset = 256;
                args.scratch_address = scratch.address() + 256;
                args.scratch_bytes = most;
                job.plan.cmd_forward(commands, args);
            }
    });
    auto forward = forwards.begin();
    for (int round = 0; round < 2; round++)
        for (const Job& job : jobs) check_right(job, *forward++);
}

namespace {

// An array of a recording: where its address stands, and which of the bytes behind it are its own.
template <class Args>
struct Placed {
    std::string name;
    VkDeviceAddress Args::*address;
    std::vector<bool> covered;
    bool is_output = false;
};

// All of a case, outputs last and in the order in which they are refused. Scratch is an output.
template <class Args>
std::vector<Placed<Args>> arrays_of(const Case& c, const Plan& plan) {
    const VkattnProblem& p = c.problem;
    const uint32_t* const n = p.mask_extents;
    const Tensor mask{n[0], n[1], n[2], n[3], p.mask_strides, p.dtype, {}};
    const auto run = [](uint64_t bytes) { return std::vector<bool>(bytes, true); };
    const std::vector<bool> of_rows = run(uint64_t{4} * p.batch * p.num_heads_q * p.seqlen_q),
                            out = tensor_of(c, 3).covered();
    std::vector<Placed<Args>> all = {{"query", &Args::query, tensor_of(c, 0).covered()},
                                     {"key", &Args::key, tensor_of(c, 1).covered()},
                                     {"value", &Args::value, tensor_of(c, 2).covered()},
                                     {"mask", &Args::mask, mask.covered()}};
    for (const OptionalArray& array : optional_arrays)
        if (address_in<Args>(array) != nullptr)
            all.push_back({array.name, address_in<Args>(array), run(content_of(c, array).size())});
    if constexpr (requires { &Args::dout; }) {
        all.insert(all.end(), {{"out", &Args::out, out},
                               {"lse", &Args::lse, of_rows},
                               {"dlse", &Args::dlse, of_rows},
                               {"dout", &Args::dout, gradient_tensor(c, 3).covered()},
                               {"dquery", &Args::dquery, gradient_tensor(c, 0).covered(), true},
                               {"dkey", &Args::dkey, gradient_tensor(c, 1).covered(), true},
                               {"dvalue", &Args::dvalue, gradient_tensor(c, 2).covered(), true},
                               {"dbias", &Args::dbias, run(mask_count(p) * element_bytes(p.dtype)), true},
                               {"dsinks", &Args::dsinks, run(uint64_t{4} * p.num_heads_q), true}});
    } else {
        all.insert(all.end(), {{"out", &Args::out, out, true}, {"lse", &Args::lse, of_rows, true}});
    }
    all.push_back({"scratch_address", &Args::scratch_address, run(plan.scratch().size_bytes), true});
    return all;
}

// `distance`: from the beginning of b to that of a.
bool share_a_byte(const std::vector<bool>& a, const std::vector<bool>& b, int64_t distance) {
    for (size_t i = 0; i < a.size(); i++) {
        const int64_t at = static_cast<int64_t>(i) + distance;
        if (a[i] && at >= 0 && at < static_cast<int64_t>(b.size()) && b[static_cast<size_t>(at)]) return true;
    }
    return false;
}

// Moves each array over each other one. What shares a byte with an output must be refused, and nothing else, whether
// the arrays nest, interleave or touch. Each tensor has strides of its own.
template <class Args, class Record>
void check_overlaps(Runtime& runtime, const Plan& plan, const Case& c, Args good, Record record) {
    const std::vector<Placed<Args>> arrays = arrays_of<Args>(c, plan);
    VkDeviceAddress free = 0;
    for (const Placed<Args>& array : arrays) good.*array.address = free += 1 << 20;
    const Buffer scratch = runtime.allocate(plan.scratch().size_bytes);
    good.scratch_buffer = scratch.handle(), good.scratch_address = scratch.address();
    CHECK(record(good).returned == VKATTN_OK);
    std::mt19937 random(47);
    int refused = 0, legal = 0;
    for (size_t i = 0; i + 1 < arrays.size(); i++)  // scratch stays where its buffer is
        for (size_t j = 0; j < arrays.size(); j++) {
            if (i == j) continue;
            const Placed<Args>&moved = arrays[i], &other = arrays[j], &named = arrays[std::max(i, j)];
            const auto words = [](const Placed<Args>& a) {
                return static_cast<int64_t>(a.covered.size() + 3) / 4;
            };
            const int64_t before = words(moved), choices = before + words(other) + 1;
            for (int64_t n = 0; n < 16; n++) {
                const int64_t choice = n == 0   ? 0
                                       : n == 1 ? choices - 1
                                                : static_cast<int64_t>(random()) % choices,
                              distance = (choice - before) * 4;
                Args args = good;
                args.*moved.address = args.*other.address + static_cast<uint64_t>(distance);
                CAPTURE(fmt::format("{} lies {} bytes behind {}", moved.name, distance, other.name));
                const bool wrong = named.is_output && share_a_byte(moved.covered, other.covered, distance);
                const Seen seen = record(args);
                CHECK((seen.returned != VKATTN_OK) == wrong);
                if (wrong) check_invalid(seen, "args." + named.name);
                (wrong ? refused : legal)++;
            }
        }
    CHECK(refused > 100);
    CHECK(legal > 100);
}

constexpr const char* unlike_strides =
    " dlse mask_shape=2,4,5,9 ms=230,53,10 qs=200,48,9 ks=260,8,27 vs=10,20,45 os=330,11,64 dqs=9,18,80 "
    "dks=300,140,14 dvs=19,9,40 dos=0,13,55";

}  // namespace

TEST_CASE_FIXTURE(Abi, "a forward refuses outputs that overlap something, and nothing else") {
    const Case own = parse_case(featured<VkattnForwardArgs>() + unlike_strides, "here");
    const Plan plan = plan_of(c, own);
    check_overlaps(runtime, plan, own, forward_args(), [&](const VkattnForwardArgs& args) {
        return call(vkattn_cmd_forward, commands, plan.get(), &args);
    });
}

TEST_CASE_FIXTURE(Abi, "a backward refuses outputs that overlap something, and nothing else") {
    const Case own = parse_case(featured<VkattnBackwardArgs>() + unlike_strides, "here");
    const Plan plan = backward_plan_of(c, own);
    check_overlaps(runtime, plan, own, backward_args(), [&](const VkattnBackwardArgs& args) {
        return call(vkattn_cmd_backward, commands, plan.get(), &args);
    });
}
