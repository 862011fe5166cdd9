// Merging of partial outputs: against fp64 arithmetic done here, and of shards of the keys against the oracle.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "fixture.hpp"
#include "forward_run.hpp"
#include "interposer.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

struct Shape {
    uint32_t num_parts, batch, heads, seqlen, dim;
    VkattnDtype dtype, parts_dtype;
    uint32_t pad = 0;  // elements left free after each row, head, batch and part
    bool lse = true;
    uint32_t alignment_bytes = 0;
};

std::string text_of(const Shape& s) {
    return fmt::format("parts={} b={} h={} sq={} d={} {} of {} pad={} align_bytes={}", s.num_parts, s.batch,
                       s.heads, s.seqlen, s.dim, name_of(s.dtype), name_of(s.parts_dtype), s.pad,
                       s.alignment_bytes);
}

// (batch, heads, seqlen, dim) with padding, or dense by the library's defaults where there is none.
VkattnStrides strides_of(const Shape& s) {
    const uint64_t row = s.dim + s.pad, head = s.seqlen * row + s.pad;
    return {s.heads * head + s.pad, head, row};
}

// Parts are a tensor of the same shape, part after part, with random content; what no element covers is poison.
struct Parts {
    explicit Parts(const Shape& s);
    std::byte* row(uint32_t part, uint64_t row_index, const Shape& s);
    double at(uint32_t part, uint64_t n) const { return dense[part * per_part + n]; }

    uint64_t rows, per_part;
    uint64_t part_stride;
    Tensor layout;              // of one part
    std::vector<double> dense;  // as stored
    std::vector<float> lse;     // (part, row)
    std::vector<std::byte> image;
};

Parts::Parts(const Shape& s) {
    layout.batch = s.batch, layout.heads = s.heads, layout.seqlen = s.seqlen, layout.dim = s.dim;
    layout.strides = strides_of(s);
    layout.dtype = s.parts_dtype;
    rows = uint64_t{s.batch} * s.heads * s.seqlen;
    per_part = rows * s.dim;
    part_stride = s.batch * layout.strides.batch + s.pad;
    const uint64_t bytes = element_bytes(s.parts_dtype);
    image.resize(rows == 0 ? 0 : ((s.num_parts - 1) * part_stride + layout.span()) * bytes);
    for (size_t i = 0; i < image.size(); i++) image[i] = i % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f};
    std::mt19937 random(s.num_parts + s.dim);
    const auto uniform = [&] { return static_cast<double>(random()) / 4294967296.0 * 2 - 1; };
    for (uint32_t part = 0; part < s.num_parts; part++)
        for (uint64_t r = 0; r < rows; r++) {
            // Of each row some parts saw nothing; of every fifth row, all.
            const bool empty = r % 5 == 4 || random() % 4 == 0;
            lse.push_back(static_cast<float>(empty ? minus_infinity : 20 * uniform()));
            for (uint64_t d = 0; d < s.dim; d++) {
                const double x = empty ? std::nan("") : rounded(uniform(), s.parts_dtype);
                dense.push_back(x);
                if (!empty) store(row(part, r, s) + d * bytes, x, s.parts_dtype);
            }
        }
}

std::byte* Parts::row(uint32_t part, uint64_t r, const Shape& s) {
    const uint64_t at = layout.at(r / s.seqlen / s.heads, r / s.seqlen % s.heads, r % s.seqlen);
    return image.data() + (part * part_stride + at) * element_bytes(s.parts_dtype);
}

// T is double, or float for the yardstick of the error rule.
template <class T>
void merge(const Shape& s, const Parts& parts, std::vector<T>& out, std::vector<T>& lse) {
    out.assign(parts.per_part, 0);
    for (uint64_t r = 0; r < parts.rows; r++) {
        T most = -std::numeric_limits<T>::infinity(), sum = 0;
        const auto lse_of = [&](uint32_t part) { return static_cast<T>(parts.lse[part * parts.rows + r]); };
        for (uint32_t part = 0; part < s.num_parts; part++) most = std::max(most, lse_of(part));
        lse.push_back(most);
        if (!std::isfinite(most)) continue;
        for (uint32_t part = 0; part < s.num_parts; part++) sum += std::exp(lse_of(part) - most);
        lse.back() = most + std::log(sum);
        for (uint32_t part = 0; part < s.num_parts; part++) {
            const T weight = std::exp(lse_of(part) - most) / sum;
            for (uint64_t n = r * s.dim; n < (r + 1) * s.dim && weight != 0; n++)
                out[n] += weight * static_cast<T>(parts.at(part, n));
        }
    }
}

Expected expect(const Shape& s, const Parts& parts) {
    Expected expected;
    merge(s, parts, expected.exact.out, expected.exact.lse);
    merge(s, parts, expected.naive.out, expected.naive.lse);
    expected.storage = storage_of(s.dtype);
    for (float& x : expected.naive.out) x = oracle::round_to_storage(x, expected.storage);
    return expected;
}

VkattnCombine combine_of(const Shape& s, const Parts& parts) {
    VkattnCombine c;
    vkattn_combine_init(&c);
    c.dtype = s.dtype;
    c.parts_dtype = s.parts_dtype;
    c.num_parts = s.num_parts;
    c.batch = s.batch;
    c.num_heads = s.heads;
    c.seqlen_q = s.seqlen;
    c.head_dim_v = s.dim;
    c.alignment_bytes = s.alignment_bytes;
    if (s.pad == 0) return c;  // the defaults
    c.part_stride = parts.part_stride;
    c.parts_strides = c.out_strides = strides_of(s);
    return c;
}

// In guarded memory; fails the test where anything is wrong, and returns what was written.
Outcome run(Device& device, const Plan& plan, const Shape& s, const Parts& parts, Place place) {
    const uint32_t parts_alignment = std::max(s.alignment_bytes, element_bytes(s.parts_dtype)),
                   alignment = std::max(s.alignment_bytes, element_bytes(s.dtype));
    Tensor layout = parts.layout;
    layout.dtype = s.dtype;
    Guarded given(device, parts.image.size(), place, parts_alignment),
        given_lse(device, parts.lse.size() * sizeof(float), place),
        out(device, layout.span() * element_bytes(s.dtype), place, alignment),
        lse(device, s.lse ? parts.rows * sizeof(float) : 0, place);
    given.write(parts.image);
    given_lse.write(std::as_bytes(std::span(parts.lse)));
    for (Guarded* memory : {&given, &given_lse}) memory->protect();
    for (Guarded* memory : {&out, &lse}) memory->fill(poison_word);
    VkattnCombineArgs args;
    vkattn_combine_args_init(&args);
    args.parts = given.address();
    args.parts_lse = given_lse.address();
    args.out = out.address();
    args.lse = s.lse ? lse.address() : 0;
    device.runtime().submit([&](VkCommandBuffer commands) { plan.cmd_combine(commands, args); });
    for (const Guarded* memory : {&given, &given_lse, &out, &lse}) CHECK(memory->intact());
    const std::vector<std::byte> content = out.read();
    const std::vector<bool> covered = layout.covered();
    size_t damaged = 0;
    for (size_t i = 0; i < content.size(); i++)
        if (!covered[i] && content[i] != (i % 2 == 0 ? std::byte{0xdb} : std::byte{0x7f})) damaged++;
    CHECK(damaged == 0);
    Outcome outcome{layout.gather(content), std::vector<float>(s.lse ? parts.rows : 0)};
    const std::vector<std::byte> lse_content = lse.read();
    if (!lse_content.empty()) std::memcpy(outcome.lse.data(), lse_content.data(), lse_content.size());
    return outcome;
}

void check_combine(Device& device, const Context& context, const Shape& shape) {
    CAPTURE(text_of(shape));
    const Parts parts(shape);
    const Plan plan(context, combine_of(shape, parts));
    CHECK(plan.scratch().size_bytes == 0);
    CHECK(plan.describe().size() > 2);
    const Expected expected = expect(shape, parts);
    const Outcome start = run(device, plan, shape, parts, Place::start),
                  end = run(device, plan, shape, parts, Place::end);
    CHECK(compare(start, expected) == "");
    CHECK(start.same_bits(end));
}

constexpr VkattnDtype f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;

}  // namespace

TEST_CASE_FIXTURE(Recorded, "partial outputs merge by their lse") {
    for (const auto& [dtype, parts_dtype] :
         {std::pair{f32, f32}, {f16, f32}, {bf16, f32}, {f16, f16}, {bf16, bf16}})
        for (const Shape& shape : {Shape{1, 2, 3, 7, 59, dtype, parts_dtype},
                                   {2, 2, 3, 7, 59, dtype, parts_dtype, 3},
                                   {7, 1, 2, 33, 111, dtype, parts_dtype, 1},
                                   {7, 3, 4, 1, 64, dtype, parts_dtype},
                                   {3, 1, 1, 5, 1, dtype, parts_dtype},
                                   {70, 2, 1, 3, 8, dtype, parts_dtype, 5, false},
                                   {4, 2, 2, 5, 64, dtype, parts_dtype, 0, true, 16},
                                   {2, 1, 1, 3, 576, dtype, parts_dtype}})
            check_combine(device, context, shape);
}

// The first row of which at least two parts saw something, and the first such part.
std::pair<uint64_t, uint32_t> a_row_of_two(const Shape& s, const Parts& parts) {
    for (uint64_t row = 0; row < parts.rows; row++) {
        std::vector<uint32_t> seen;
        for (uint32_t part = 0; part < s.num_parts; part++)
            if (std::isfinite(parts.lse[part * parts.rows + row])) seen.push_back(part);
        if (seen.size() > 1) return {row, seen[0]};
    }
    throw std::logic_error("no row has two parts");
}

TEST_CASE_FIXTURE(Recorded, "what is not finite in a part does not vanish from the merged row") {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    for (const Shape& shape : {Shape{3, 2, 3, 7, 59, f32, f32}, {70, 1, 2, 5, 64, f16, f32}}) {
        CAPTURE(text_of(shape));
        const Parts clean_parts(shape);
        const Plan plan(context, combine_of(shape, clean_parts));
        const Outcome clean = run(device, plan, shape, clean_parts, Place::end);
        const auto [row, part] = a_row_of_two(shape, clean_parts);
        for (const auto& [of_lse, x] : {std::pair{true, nan}, {true, inf}, {false, nan}, {false, inf}}) {
            CAPTURE(of_lse);
            CAPTURE(x);
            Parts parts = clean_parts;
            if (of_lse)
                parts.lse[part * parts.rows + row] = x;
            else
                store(parts.row(part, row, shape), x, shape.parts_dtype);
            const Outcome got = run(device, plan, shape, parts, Place::end);
            for (uint64_t r = 0; r < parts.rows; r++) {
                const auto at = [&](const Outcome& o) {
                    return std::span(o.out).subspan(r * shape.dim, shape.dim);
                };
                if (r != row) {
                    CHECK(std::ranges::equal(at(got), at(clean)));
                    CHECK(got.lse[r] == clean.lse[r]);
                } else if (of_lse) {
                    CHECK(std::ranges::all_of(at(got), [](float y) { return std::isnan(y); }));
                    CHECK(std::isnan(got.lse[r]));
                } else {
                    CHECK(!std::isfinite(at(got)[0]));
                    CHECK(std::ranges::equal(at(got).subspan(1), at(clean).subspan(1)));
                    CHECK(got.lse[r] == clean.lse[r]);
                }
            }
        }
    }
}

namespace {

// Merges into part `of_out`, and the lse into that of part `of_lse`. What was written; the other parts stay as they
// are.
Outcome run_in_place(Device& device, const Plan& plan, const Shape& s, const Parts& parts, uint32_t of_out,
                     uint32_t of_lse) {
    const uint64_t bytes = element_bytes(s.dtype), at = of_out * parts.part_stride * bytes;
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
    for (const VkattnDtype dtype : {f32, f16, bf16})
        for (const Shape& shape : {Shape{2, 2, 3, 7, 59, dtype, dtype, 3},
                                   {3, 2, 2, 5, 64, dtype, dtype, 0, true, 16},
                                   {70, 2, 1, 3, 8, dtype, dtype, 5},
                                   {7, 1, 2, 33, 111, dtype, dtype, 1},
                                   {3, 1, 1, 3, 576, dtype, dtype},
                                   {1, 1, 2, 9, 13, dtype, dtype}}) {
            CAPTURE(text_of(shape));
            const Parts parts(shape);
            const Plan plan(context, combine_of(shape, parts));
            const Outcome apart = run(device, plan, shape, parts, Place::end);
            CHECK(compare(apart, expect(shape, parts)) == "");
            const uint32_t last = shape.num_parts - 1;
            for (const auto& [of_out, of_lse] : {std::pair{0u, 0u}, {last, last}, {last / 2, last}})
                CHECK(run_in_place(device, plan, shape, parts, of_out, of_lse).same_bits(apart));
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
    other.dtype = f16;
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
    for (const Shape& shape : {Shape{2, 0, 3, 7, 59, f32, f32}, {2, 1, 3, 0, 59, f16, f16}}) {
        const Parts parts(shape);
        const Plan plan(context, combine_of(shape, parts));
        CAPTURE(text_of(shape));
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
    const Shape shape{3, 2, 2, 5, 64, f32, f32}, other{9, 1, 4, 50, 64, f32, f32};
    between.pretend = true;
    const Context fresh = between.context();
    const int before = between.pipelines_asked_for();
    const Plan plan(fresh, combine_of(shape, Parts(shape))), longer(fresh, combine_of(other, Parts(other)));
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
            const VkMemoryBarrier done{VK_STRUCTURE_TYPE_MEMORY_BARRIER, nullptr, VKATTN_LAST_ACCESS,
                                       VKATTN_FIRST_ACCESS};
            on_.device.vk().vkCmdPipelineBarrier(commands, VKATTN_LAST_STAGES, VKATTN_FIRST_STAGES, 0, 1,
                                                 &done, 0, nullptr, 0, nullptr);
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
