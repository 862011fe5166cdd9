// Merging of partial outputs: against fp64 arithmetic done here, and of shards of the keys against the oracle.
#include <algorithm>

#include "combine_run.hpp"
#include "interposer.hpp"
#include "own_work.hpp"
#include "skip.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr const char* combine_text =
#include "combine_cases.inc"
    ;

// Fails the test where memory is damaged.
Outcome run(Device& device, const Plan& plan, const Case& c, const Parts& parts, Place place) {
    const auto [outcome, damage] = run_combine(device, plan, c, parts, place);
    CHECK_EQ(damage, "");
    return outcome;
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "combine cases, of every section") {
    size_t run = 0;
    for (const Section& section : parse_cases(combine_text, "combine.txt"))
        for (const Case& c : section.cases)
            for (VkattnContext* const own : {context.get(), runtime.context()}) {
                if (own != context.get() && !c.nonfinite) continue;
                CAPTURE(c.text);
                const Report report = run_combine_case(device, own, c);
                for (const std::string& failure : report.failures) FAIL_CHECK(failure);
                if (!report.skipped.empty()) skip(c.text + ": " + report.skipped);
                const Plan plan(own, combine_of(c, Parts(c)));
                CHECK(plan.scratch().size_bytes == 0);
                CHECK(plan.describe().size() > 2);
                run++;
            }
    CHECK(run == 54 + 3);
}

namespace {

// Merges into part `of_out`, and the lse into that of part `of_lse`. What was written; the other parts stay as they
// are.
Outcome run_in_place(Device& device, const Plan& plan, const Parts& parts, uint32_t of_out, uint32_t of_lse) {
    const Tensor& layout = parts.layout;
    const uint64_t at = of_out * parts.part_stride * element_bytes(layout.dtype);
    const uint64_t first_lse = of_lse * parts.rows;
    const std::vector<bool> covered = layout.covered();
    std::vector<bool> written(parts.image.size()), lse_written(parts.lse.size() * sizeof(float));
    std::copy(covered.begin(), covered.end(), written.begin() + static_cast<std::ptrdiff_t>(at));
    std::fill_n(lse_written.begin() + static_cast<std::ptrdiff_t>(first_lse * sizeof(float)),
                parts.rows * sizeof(float), true);
    RunMemory memory(device);
    VkattnCombineArgs args = combine_args();
    args.parts = memory.add("parts", parts.image, written, 16);
    args.parts_lse = memory.add("parts_lse", std::as_bytes(std::span(parts.lse)), lse_written, 4);
    args.out = args.parts + at;
    args.lse = args.parts_lse + first_lse * sizeof(float);
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_combine(commands, args); });
    CHECK(memory.damage() == "");
    const std::vector<std::byte> content = memory.content("parts");
    const std::vector<float> lse = memory.floats("parts_lse");
    const auto own_lse = std::span(lse).subspan(first_lse, parts.rows);
    return {layout.gather(std::span(content).subspan(at, covered.size())), {own_lse.begin(), own_lse.end()}};
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "a combine may merge in place, into any part and any lse") {
    for (const char* types : {"dtype=f32", "dtype=f16 parts_dtype=f16", "dtype=bf16 parts_dtype=bf16"})
        for (const char* text :
             {"parts=2 b=2 h=3 sq=7 dv=59 pad=3 ", "parts=3 b=2 h=2 sq=5 dv=64 align_bytes=16 ",
              "parts=70 b=2 sq=3 dv=8 pad=5 ", "parts=7 h=2 sq=33 dv=111 pad=1 ", "parts=3 sq=3 dv=576 ",
              "h=2 sq=9 dv=13 "}) {
            const Case c = parse_case(std::string(text) + types);
            CAPTURE(c.text);
            const Parts parts(c);
            const Plan plan(context, combine_of(c, parts));
            const Outcome apart = run(device, plan, c, parts, Place::end);
            CHECK(compare(apart, vkattn::test::expect(c, parts)) == "");
            const uint32_t last = c.num_parts - 1;
            for (const auto& [of_out, of_lse] : {std::pair{0u, 0u}, {last, last}, {last / 2, last}})
                CHECK(run_in_place(device, plan, parts, of_out, of_lse).same_bits(apart));
        }
}

TEST_CASE_FIXTURE(Recorded, "a combine refuses every other overlap") {
    between.pretend = true;
    const Context fresh = between.context();
    const VkCommandBuffer commands = reinterpret_cast<VkCommandBuffer>(uintptr_t{16});
    VkattnCombine good = combine();
    good.num_parts = 3;
    good.batch = 2, good.num_heads = 2, good.seqlen_q = 5, good.head_dim_v = 8;
    constexpr uint64_t rows = 2 * 2 * 5, row = 8 * 4, part = rows * row;
    VkattnCombineArgs apart = combine_args();
    apart.parts = 1 << 20, apart.parts_lse = 2 << 20, apart.out = 3 << 20, apart.lse = 4 << 20;
    // "" if it is recorded, else the field that is refused.
    const auto record = [&](const VkattnCombine& c, const VkattnCombineArgs& args) {
        const Plan plan(fresh, c);
        VkattnError error;
        const VkattnStatus status = vkattn_cmd_combine(commands, plan.get(), &args, &error);
        CHECK((status == VKATTN_OK || status == VKATTN_INVALID_ARGUMENT));
        return std::string(error.field);
    };
    const auto with = [&](VkDeviceAddress VkattnCombineArgs::*field, VkDeviceAddress address) {
        VkattnCombineArgs args = apart;
        args.*field = address;
        return record(good, args);
    };
    using A = VkattnCombineArgs;
    CHECK(record(good, apart) == "");
    for (uint64_t p = 0; p < 3; p++) CHECK(with(&A::out, apart.parts + p * part) == "");
    for (uint64_t p = 0; p < 3; p++) CHECK(with(&A::lse, apart.parts_lse + p * rows * 4) == "");
    CHECK(with(&A::out, apart.parts + 3 * part) == "");  // right behind
    CHECK(with(&A::out, apart.parts - part) == "");
    for (const uint64_t off : {row, part - row, 3 * part - row, uint64_t{4}})
        CHECK(with(&A::out, apart.parts + off) == "args.out");
    CHECK(with(&A::out, apart.parts_lse) == "args.out");
    CHECK(with(&A::out, apart.lse) == "args.lse");
    for (const uint64_t off : {uint64_t{4}, rows * 4 - 4, rows * 12 - 4})
        CHECK(with(&A::lse, apart.parts_lse + off) == "args.lse");
    CHECK(with(&A::lse, apart.parts + 2 * part) == "args.lse");

    VkattnCombine other = good;  // out of a part's address, but not of its strides or type
    VkattnCombineArgs in_place = apart;
    in_place.out = apart.parts + part;
    other.out_strides = {80, 8, 16};  // (batch, seq, head, dim)
    CHECK(record(other, in_place) == "args.out");
    other.parts_strides = other.out_strides;
    CHECK(record(other, in_place) == "");
    other = good;
    other.dtype = VKATTN_DTYPE_FLOAT16;
    CHECK(record(other, in_place) == "args.out");
    other = good;
    other.part_stride = 0;  // all parts are the one that is written
    in_place.out = apart.parts;
    CHECK(record(other, in_place) == "args.out");
    other.part_stride = 8;  // parts interleave row by row
    other.parts_strides = other.out_strides = {2 * 5 * 24, 5 * 24, 24};
    in_place.out = apart.parts + row;
    CHECK(record(other, in_place) == "");
    in_place.out = apart.parts + row / 2;
    CHECK(record(other, in_place) == "args.out");
}

namespace {

// Attention over the keys of a case in shards, each a forward of its own, whose parts are merged in the same command
// buffer. A shard's keys are views of the whole's.
Outcome run_shards(Recorded& on, const Case& c, const Inputs& inputs, const std::vector<uint32_t>& lengths) {
    const Tensor out = tensor_of(c, 3);
    const uint32_t element = element_bytes(out.dtype);
    const uint64_t rows = out.batch * out.heads * out.seqlen, part_bytes = rows * out.row_bytes();
    VkattnCombine merge = combine();
    merge.dtype = merge.parts_dtype = out.dtype;
    merge.num_parts = static_cast<uint32_t>(lengths.size());
    merge.batch = c.problem.batch;
    merge.num_heads = c.problem.num_heads_q;
    merge.seqlen_q = c.problem.seqlen_q;
    merge.head_dim_v = c.problem.head_dim_v;
    const Plan merged(on.context, merge);

    RunMemory memory(on.device);
    VkattnForwardArgs whole = forward_args();
    memory.add_inputs(c, inputs, whole);
    VkattnCombineArgs args = combine_args();
    args.parts = memory.output("parts", lengths.size() * part_bytes, element);
    args.parts_lse = memory.output("parts_lse", lengths.size() * rows * sizeof(float));
    args.out = memory.output("out", out, element);
    args.lse = memory.output("lse", rows * sizeof(float));
    std::vector<std::pair<Plan, VkattnForwardArgs>> shards;
    uint32_t first = 0;
    for (const uint32_t length : lengths) {
        VkattnProblem p = c.problem;
        p.align = VKATTN_ALIGN_OFFSET;
        p.query_offset = int64_t{p.seqlen_kv} - p.seqlen_q - first;
        p.seqlen_kv = length;
        p.key_strides = inputs.key.strides;
        p.value_strides = inputs.value.strides;
        VkattnForwardArgs shard = whole;
        shard.key += first * p.key_strides.seq * element;
        shard.value += first * p.value_strides.seq * element;
        shard.out = args.parts + shards.size() * part_bytes;
        shard.lse = args.parts_lse + shards.size() * rows * sizeof(float);
        shards.emplace_back(Plan(on.context, p), shard);
        memory.add_scratch(shards.back().first, shards.back().second);
        first += length;
    }
    REQUIRE(first == c.problem.seqlen_kv);
    on.runtime.submit([&](VkCommandBuffer commands) {
        for (const auto& [plan, shard] : shards) plan.cmd_forward(commands, shard);
        barrier_between(on.device, commands, attention_last, attention_first);
        merged.cmd_combine(commands, args);
    });
    CHECK(memory.damage() == "");
    return {out.gather(memory.content("out")), memory.floats("lse")};
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "shards of the keys merge to attention over all of them") {
    // Shards that only some rows see, and that nobody does.
    const std::pair<const char*, std::vector<uint32_t>> sharded[] = {
        {"b=2 hq=4 hkv=2 sq=33 skv=113 d=40", {50, 1, 62}},
        {"b=2 hq=4 hkv=2 sq=97 skv=113 d=40 causal", {16, 17, 80}},
        {"b=2 h=2 sq=203 skv=113 d=40 causal", {100, 13}},
        {"h=2 sq=7 skv=203 window=30,0", {64, 64, 64, 11}},
        {"b=2 hq=4 hkv=2 sq=33 skv=113 d=59 dtype=f16", {50, 1, 62}},
        {"b=2 hq=4 hkv=2 sq=33 skv=113 d=40 dtype=bf16 causal", {31, 82}}};
    for (const auto& [text, lengths] : sharded) {
        const Case c = parse_case(text, "here");
        CAPTURE(c.text);
        const Inputs inputs = make_inputs(c);
        CHECK(compare(run_shards(*this, c, inputs, lengths), vkattn::test::expect(c, inputs)) == "");
    }
}
