// Merging of partial outputs: against fp64 arithmetic done here, and of shards of the keys against the oracle.
#include <algorithm>
#include <cstring>

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
    const CombineRun run = run_combine(device, plan, c, parts, place);
    CHECK_EQ(run.damage, "");
    return run.outcome;
}

}  // namespace

TEST_CASE_FIXTURE(Recorded, "combine cases, of every section") {
    size_t run = 0;
    for (const Section& section : parse_cases(combine_text, "combine.txt"))
        for (const Case& c : section.cases) {
            CAPTURE(c.text);
            const Report report = run_combine_case(device, context.get(), c);
            for (const std::string& failure : report.failures) FAIL_CHECK(failure);
            if (!report.skipped.empty()) skip(c.text + ": " + report.skipped);
            const Plan plan(context.get(), combine_of(c, Parts(c)));
            CHECK(plan.scratch().size_bytes == 0);
            CHECK(plan.describe().size() > 2);
            run++;
        }
    CHECK(run == 44);
}

namespace {

// Merges into part `of_out`, and the lse into that of part `of_lse`. What was written; the other parts stay as they
// are.
Outcome run_in_place(Device& device, const Plan& plan, const Parts& parts, uint32_t of_out, uint32_t of_lse) {
    const uint64_t bytes = element_bytes(parts.layout.dtype), at = of_out * parts.part_stride * bytes;
    Guarded given(device, parts.image.size(), Place::end, 16), lse(device, parts.lse.size() * 4, Place::end);
    given.write(parts.image);
    lse.write(std::as_bytes(std::span(parts.lse)));
    VkattnCombineArgs args = combine_args();
    args.parts = given.address();
    args.parts_lse = lse.address();
    args.out = given.address() + at;
    args.lse = lse.address() + of_lse * parts.rows * 4;
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_combine(commands, args); });
    CHECK(given.intact());
    CHECK(lse.intact());

    std::vector<std::byte> content = given.read();
    std::vector<float> statistics(parts.lse.size());
    std::memcpy(statistics.data(), lse.read().data(), statistics.size() * 4);
    const auto first = content.begin() + static_cast<std::ptrdiff_t>(at);
    const std::vector<std::byte> part(first,
                                      first + static_cast<std::ptrdiff_t>(parts.layout.span() * bytes));
    const auto first_lse = statistics.begin() + static_cast<std::ptrdiff_t>(of_lse * parts.rows);
    Outcome outcome{parts.layout.gather(part),
                    {first_lse, first_lse + static_cast<std::ptrdiff_t>(parts.rows)}};

    const std::vector<bool> covered = parts.layout.covered();
    for (size_t i = 0; i < part.size(); i++)
        if (covered[i]) content[at + i] = parts.image[at + i];
    CHECK(content == parts.image);
    std::copy_n(parts.lse.begin() + static_cast<std::ptrdiff_t>(of_lse * parts.rows), parts.rows, first_lse);
    CHECK(statistics == parts.lse);
    return outcome;
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

TEST_CASE_FIXTURE(Recorded, "empty combines record nothing") {
    for (const char* text : {"parts=2 b=0 h=3 sq=7 dv=59", "parts=2 h=3 dv=59 dtype=f16 parts_dtype=f16"}) {
        const Case c = parse_case(text);
        const Parts parts(c);
        const Plan plan(context, combine_of(c, parts));
        CAPTURE(text);
        VkattnCombineArgs args;
        vkattn_combine_args_init(&args);
        Recorder recorder(device);
        between.take_commands();
        plan.cmd_combine(recorder.begin(), args);
        recorder.end();
        CHECK(between.take_commands().empty());
    }
}

TEST_CASE_FIXTURE(Recorded, "a combine records one dispatch, whatever the lengths, of one pipeline") {
    const Case c = parse_case("parts=3 b=2 h=2 sq=5 dv=64"), other = parse_case("parts=9 h=4 sq=50 dv=64");
    between.pretend = true;
    const Context fresh = between.context();
    const int before = between.pipelines_asked_for();
    const Plan plan(fresh, combine_of(c, Parts(c))), longer(fresh, combine_of(other, Parts(other)));
    CHECK(between.pipelines_asked_for() == before + 1);
    VkattnCombineArgs args;
    vkattn_combine_args_init(&args);
    args.parts = 1 << 20, args.parts_lse = 2 << 20, args.out = 3 << 20;
    between.take_commands();
    longer.cmd_combine(reinterpret_cast<VkCommandBuffer>(uintptr_t{16}), args);
    size_t dispatches = 0;
    for (const Command& command : between.take_commands())
        dispatches += command.kind == Command::Kind::dispatch ? 1 : 0;
    CHECK(dispatches == 1);
}

namespace {

// The keys of a case in shards, each a forward of its own; their parts are merged in the same command buffer.
class Shards {
  public:
    Shards(Recorded& on, const Case& c, const std::vector<uint32_t>& lengths)
        : on_(on), c_(c), inputs_(make_inputs(c)), count_(static_cast<uint32_t>(lengths.size())) {
        const VkattnProblem& p = c.problem;
        rows_ = uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
        query_ = upload(inputs_.query.image);
        key_ = upload(inputs_.key.image);
        value_ = upload(inputs_.value.image);
        parts_ = Guarded(on.device, count_ * part_bytes(), Place::end, element());
        parts_lse_ = Guarded(on.device, count_ * lse_bytes(), Place::end);
        out_ = Guarded(on.device, part_bytes(), Place::end, element());
        lse_ = Guarded(on.device, lse_bytes(), Place::end);
        uint32_t first = 0;
        for (const uint32_t length : lengths) {
            add(first, length);
            first += length;
        }
        REQUIRE(first == p.seqlen_kv);
    }

    Outcome merge() {
        VkattnCombine c;
        vkattn_combine_init(&c);
        c.dtype = c.parts_dtype = c_.problem.dtype;
        c.num_parts = count_;
        c.batch = c_.problem.batch;
        c.num_heads = c_.problem.num_heads_q;
        c.seqlen_q = c_.problem.seqlen_q;
        c.head_dim_v = c_.problem.head_dim_v;
        const Plan combine(on_.context, c);
        VkattnCombineArgs args;
        vkattn_combine_args_init(&args);
        args.parts = parts_.address();
        args.parts_lse = parts_lse_.address();
        args.out = out_.address();
        args.lse = lse_.address();
        on_.runtime.submit([&](VkCommandBuffer commands) {
            for (const Shard& shard : shards_) shard.plan.cmd_forward(commands, shard.args);
            barrier_between(on_.device, commands, attention_last, attention_first);
            combine.cmd_combine(commands, args);
        });
        Outcome outcome{tensor_of(c_, 3).gather(out_.read()), std::vector<float>(rows_)};
        const std::vector<std::byte> lse = lse_.read();
        std::memcpy(outcome.lse.data(), lse.data(), lse.size());
        return outcome;
    }

    const Inputs& inputs() const { return inputs_; }

  private:
    struct Shard {
        Plan plan;
        Guarded scratch;
        VkattnForwardArgs args;
    };

    uint32_t element() const { return element_bytes(c_.problem.dtype); }
    uint64_t part_bytes() const { return rows_ * c_.problem.head_dim_v * element(); }
    uint64_t lse_bytes() const { return rows_ * sizeof(float); }

    Guarded upload(std::span<const std::byte> content) {
        Guarded memory(on_.device, content.size(), Place::end, element());
        memory.write(content);
        return memory;
    }

    void add(uint32_t first, uint32_t length) {
        VkattnProblem p = c_.problem;
        p.align = VKATTN_ALIGN_OFFSET;
        p.query_offset = int64_t{p.seqlen_kv} - p.seqlen_q - first;
        p.seqlen_kv = length;
        p.key_strides = inputs_.key.strides;
        p.value_strides = inputs_.value.strides;
        Plan plan(on_.context, p);
        const VkattnScratch needs = plan.scratch();
        Guarded scratch(on_.device, needs.size_bytes, Place::end,
                        static_cast<uint32_t>(needs.alignment_bytes));
        VkattnForwardArgs args = forward_args();
        args.query = query_.address();
        args.key = key_.address() + first * p.key_strides.seq * element();
        args.value = value_.address() + first * p.value_strides.seq * element();
        args.out = parts_.address() + shards_.size() * part_bytes();
        args.lse = parts_lse_.address() + shards_.size() * lse_bytes();
        if (needs.size_bytes != 0) {
            args.scratch_buffer = scratch.buffer();
            args.scratch_offset = scratch.offset_bytes();
            args.scratch_address = scratch.address();
        }
        shards_.push_back({std::move(plan), std::move(scratch), args});
    }

    Recorded& on_;
    const Case& c_;
    Inputs inputs_;
    uint32_t count_;
    uint64_t rows_ = 0;
    Guarded query_, key_, value_, parts_, parts_lse_, out_, lse_;
    std::vector<Shard> shards_;
};

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
        Shards shards(*this, c, lengths);
        CHECK(compare(shards.merge(), vkattn::test::expect(c, shards.inputs())) == "");
    }
}
