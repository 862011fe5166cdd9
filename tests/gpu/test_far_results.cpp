// Dense results past 4 GiB: lse, out and parts of the output of so many rows that their places need more than 32
// bits. Only a few segments of such a plan are run; address space costs nothing, and any place that is computed wrong
// faults, or is not written.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <tuple>

#include "backward_run.hpp"
#include "case_plan.hpp"
#include "fixture.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Query rows first .. end-1 of the heads first_head .. end_head-1, which are counted over all batches.
struct WrittenRows {
    uint64_t first_head, end_head, first, end;
};

// Returns the rows that forward dispatch d writes, where heads do not share tiles. It counts query tiles from the last.
WrittenRows rows_of(const core::Plan& plan, const core::Dispatch& d) {
    const uint64_t first_head = d.cut.first[0],
                   slices = core::constant_of(plan.pipelines[d.pipeline], "slices");
    const uint64_t tile_q = plan.tiles.tile_q, seqlen = plan.problem.seqlen_q,
                   tiles = (seqlen + tile_q - 1) / tile_q, end_tile = tiles - d.cut.first[1],
                   first_tile = end_tile - d.groups[1];
    return {first_head, first_head + d.groups[0] / std::max<uint64_t>(1, slices), first_tile * tile_q,
            std::min(end_tile * tile_q, seqlen)};
}

// Returns the rows that dispatch d of the combine kernel merges.
WrittenRows merged_rows(const core::Plan& plan, const core::Dispatch& d) {
    const core::Pipeline& p = plan.pipelines[d.pipeline];
    const uint64_t of_row = uint64_t{core::constant_of(p, "lanes")} * core::constant_of(p, "teams");
    const uint64_t each = core::constant_of(p, "threads") / of_row, first = d.cut.first[1] * each;
    return {d.cut.first[0], uint64_t{d.cut.first[0]} + d.groups[0], first,
            std::min<uint64_t>(first + d.groups[1] * each, plan.problem.seqlen_q)};
}

uint64_t scratch_offset(const core::Plan& plan, core::Region region) {
    for (const core::ScratchRegion& s : plan.scratch)
        if (s.region == region) return s.offset_bytes;
    throw RuntimeError(fmt::format("the plan keeps no {}", name_of(region)));
}

Case with_one_row(Case c) {
    c.problem.batch = c.problem.seqlen_q = 1;
    return c;
}

// Every query row of a head is the same (strides of 0), and so is every result. Address space for all results.
class HugeForward {
  public:
    HugeForward(Device& device, VkattnContext* context, const std::string& text)
        : device_(device),
          c_(parse_case(text, "here")),
          plan_(plan_of(context, c_)),
          core_(*core_plan_of(context->caps, c_, false)),
          inputs_(make_inputs(with_one_row(c_))),
          rows_(uint64_t{c_.problem.batch} * c_.problem.num_heads_q * c_.problem.seqlen_q),
          out_(rows_ * c_.problem.head_dim_v * element_bytes(c_.problem.dtype)),
          lse_(rows_ * 4),
          scratch_(plan_.scratch().size_bytes + core::scratch_alignment) {
        if (out_.base() == nullptr || lse_.base() == nullptr || scratch_.base() == nullptr)
            throw RuntimeError("not so much address space");
        const Tensor* const tensors[] = {&inputs_.query, &inputs_.key, &inputs_.value};
        VkDeviceAddress* const addresses[] = {&args_.query, &args_.key, &args_.value};
        for (size_t t = 0; t < 3; t++) *addresses[t] = memory_.input("operand", tensors[t]->image);
        args_.out = address_of(out_);
        args_.lse = address_of(lse_);
        args_.scratch_address = address_of(scratch_);
    }

    const core::Plan& plan() const { return core_; }

    // Makes what these rows write usable, parts of it too.
    void enable(const WrittenRows& rows) {
        const uint64_t dim = c_.problem.head_dim_v, count = rows.end - rows.first;
        const bool parts = core_.num_splits > 1;
        for (uint64_t h = rows.first_head; h < rows.end_head; h++) {
            const uint64_t first = h * c_.problem.seqlen_q + rows.first;
            const uint64_t element = element_bytes(c_.problem.dtype);
            out_.enable(first * dim * element, count * dim * element);
            lse_.enable(first * 4, count * 4);
            for (uint64_t part = 0; parts && part < core_.num_splits; part++) {
                const uint64_t row = part * rows_ + first;
                scratch_.enable(scratch_offset(core_, core::Region::parts) + row * dim * 4, count * dim * 4);
                scratch_.enable(scratch_offset(core_, core::Region::parts_lse) + row * 8, count * 8);
            }
        }
    }
    void run(uint32_t first, uint32_t count) {
        device_.runtime().submit(
            [&](VkCommandBuffer commands) { plan_.cmd_forward(commands, args_, first, count); });
    }

    // The result of a row, with that of the same row by the oracle, against the error rule.
    std::string flaw_of(uint64_t head, uint64_t row) const {
        Case one = parse_case(c_.text, "here");
        const VkattnProblem& p = c_.problem;
        const uint64_t dim = p.head_dim_v, index = head * p.seqlen_q + row;
        const uint32_t kv = static_cast<uint32_t>(head % p.num_heads_q / (p.num_heads_q / p.num_heads_kv));
        // One batch, one head, one row: the first of Q, and this head's K and V.
        one.problem.batch = one.problem.num_heads_q = one.problem.num_heads_kv = one.problem.seqlen_q = 1;
        Inputs inputs{tensor_of(one, 0), tensor_of(one, 1), tensor_of(one, 2), {}, {}};
        std::memcpy(inputs.query.row(0, 0, 0), inputs_.query.row(0, 0, 0), inputs.query.row_bytes());
        for (uint64_t j = 0; j < p.seqlen_kv; j++) {
            std::memcpy(inputs.key.row(0, 0, j), inputs_.key.row(0, kv, j), inputs.key.row_bytes());
            std::memcpy(inputs.value.row(0, 0, j), inputs_.value.row(0, kv, j), inputs.value.row_bytes());
        }
        Outcome got{{}, {0}};
        const uint64_t element = element_bytes(p.dtype);
        for (uint64_t d = 0; d < dim; d++)
            got.out.push_back(load(out_.base() + (index * dim + d) * element, p.dtype));
        std::memcpy(got.lse.data(), lse_.base() + index * 4, 4);
        const std::string what = compare(got, expect(one, inputs));
        return what.empty() ? "" : fmt::format("head {}, row {}: {}", head, row, what);
    }

  private:
    static VkDeviceAddress address_of(const Reservation& r) {
        return (reinterpret_cast<uintptr_t>(r.base()) + core::scratch_alignment - 1) /
               core::scratch_alignment * core::scratch_alignment;
    }

    Device& device_;
    Case c_;
    Plan plan_;
    core::Plan core_;
    Inputs inputs_;
    uint64_t rows_;
    Reservation out_, lse_, scratch_;
    RunMemory memory_{device_};
    VkattnForwardArgs args_ = forward_args();
};

// The corners of what one dispatch wrote.
void check_corners(const HugeForward& forward, const WrittenRows& rows) {
    for (const uint64_t head : {rows.first_head, (rows.first_head + rows.end_head) / 2, rows.end_head - 1})
        for (const uint64_t row : {rows.first, rows.end - 1}) CHECK(forward.flaw_of(head, row) == "");
}

void run_segment(HugeForward& forward, uint32_t segment) {
    const WrittenRows rows = rows_of(forward.plan(), forward.plan().dispatches[segment]);
    forward.enable(rows);
    forward.run(segment, 1);
    check_corners(forward, rows);
}

// The address of a region of a backward.
template <class Args>
VkDeviceAddress region_address(const core::Plan& plan, const Args& args, core::Region region) {
#define REGION(name, role)                 \
    if constexpr (requires { args.name; }) \
        if (region == core::Region::name) return args.name;
#include "plan/regions.def"
    return args.scratch_address + scratch_offset(plan, region);
}

// Writes the argument block. The library does so where the first segment is recorded, which here is never run.
void write_arguments(const core::Plan& plan, const VkattnBackwardArgs& args, Reservation& scratch) {
    std::vector<std::byte> block = plan.arguments;
    for (const core::Patch& patch : plan.argument_patches) {
        const VkDeviceAddress at = region_address(plan, args, patch.region) + patch.add;
        std::memcpy(block.data() + patch.at, &at, sizeof at);
    }
    const uint64_t offset = scratch_offset(plan, core::Region::arguments);
    scratch.enable(offset, block.size());
    std::memcpy(scratch.base() + offset, block.data(), block.size());
}

// A backward of one batch, so many times over: all batches share the inputs that have strides.
Case repeated(const Case& one, uint64_t batches) {
    Case c = one;
    c.problem.batch = c.problem.mask_extents[0] = static_cast<uint32_t>(batches);
    c.problem.query_strides = {0, 8, 8};
    c.problem.key_strides = c.problem.value_strides = {0, 72, 8};
    c.problem.mask_strides = {0, 9, 9};
    c.gradient_strides[3] = VkattnStrides{0, 8, 8};
    return c;
}

// The batches, of two heads each, that the last dispatches of every pass have; only they have memory.
class LastBatches {
  public:
    LastBatches(const core::Plan& plan, uint64_t batches) : first_(batches), batches_(batches) {
        for (uint32_t i = 0; i < plan.dispatches.size(); i++) {
            const core::Dispatch& d = plan.dispatches[i];
            if (uint64_t{d.cut.first[0]} + d.groups[0] != 2 * batches) continue;
            segments_.push_back(i);
            first_ = std::min<uint64_t>(first_, d.cut.first[0] / 2);
        }
    }
    const std::vector<uint32_t>& segments() const { return segments_; }

    // An array of so many bytes a batch, and what each of the batches has there.
    VkDeviceAddress add(uint64_t bytes, std::span<const std::byte> content = {}) {
        Reservation& space = spaces_.emplace_back(batches_ * bytes);
        enable(space, 0, bytes);
        for (uint64_t b = first_; b < batches_ && !content.empty(); b++)
            std::memcpy(space.base() + b * bytes, content.data(), bytes);
        return reinterpret_cast<uintptr_t>(space.base());
    }
    // Makes an array that begins at an offset of a space usable.
    void enable(Reservation& space, uint64_t offset, uint64_t bytes) const {
        space.enable(offset + first_ * bytes, (batches_ - first_) * bytes);
    }
    // The elements of the last batch in an array.
    std::vector<float> last(VkDeviceAddress array, uint64_t elements, VkattnDtype dtype) const {
        std::vector<float> all;
        const auto* const end =
            reinterpret_cast<const std::byte*>(array) + batches_ * elements * element_bytes(dtype);
        for (uint64_t n = elements; n > 0; n--) all.push_back(load(end - n * element_bytes(dtype), dtype));
        return all;
    }

  private:
    std::vector<uint32_t> segments_;
    uint64_t first_, batches_;
    std::deque<Reservation> spaces_;
};

// Runs the dispatches that reach the last heads of a backward of many batches, which are all alike: two heads of a row.
// Returns what is wrong with the gradients of the last batch, or "".
std::string flaw_of_last_batch(Device& device, VkattnContext* context, uint64_t batches,
                               const std::string& words) {
    const Case one = parse_case("h=2 sq=1 skv=9 d=8 mask=float mask_shape=1,2,1,9 dlse " + words, "here");
    const Case c = repeated(one, batches);
    const Plan plan = backward_plan_of(context, c);
    const core::Plan planned = *core_plan_of(context->caps, c, true);
    LastBatches batch(planned, batches);
    using A = VkattnBackwardArgs;
    A args = backward_args();
    const BackwardInputs inputs(one);
    RunMemory memory(device);
    memory.add_inputs(one, inputs.forward, args);
    args.dout = memory.input("dout", inputs.dout.image);
    args.out = batch.add(inputs.out.image.size(), inputs.out.image);
    args.lse = batch.add(8, std::as_bytes(std::span(inputs.lse)));
    args.dlse = batch.add(8, std::as_bytes(std::span(inputs.dlse)));
    const std::tuple<VkDeviceAddress A::*, uint64_t, std::vector<float> Gradients::*> outputs[] = {
        {&A::dquery, 16, &Gradients::query},
        {&A::dkey, 144, &Gradients::key},
        {&A::dvalue, 144, &Gradients::value},
        {&A::dbias, 18, &Gradients::mask}};
    const VkattnDtype dtype = one.problem.dtype;
    for (const auto& [address, elements, to] : outputs)
        args.*address = batch.add(elements * element_bytes(dtype));

    // No buffer is as large as the scratch, and none is written to: any one may stand for it.
    const Buffer stand_in = device.runtime().allocate(256);
    Reservation scratch(planned.scratch_bytes);
    args.scratch_address = reinterpret_cast<uintptr_t>(scratch.base());
    args.scratch_buffer = stand_in.handle();
    args.scratch_offset = args.scratch_address - stand_in.address();
    write_arguments(planned, args, scratch);
    batch.enable(scratch, scratch_offset(planned, core::Region::statistics), 32);

    for (const uint32_t segment : batch.segments())
        device.runtime().submit(
            [&](VkCommandBuffer commands) { plan.cmd_backward(commands, args, segment, 1); });
    Gradients got;
    for (const auto& [address, elements, to] : outputs) got.*to = batch.last(args.*address, elements, dtype);
    return compare(got, expect_gradients(one, inputs));
}

}  // namespace

// The first segment has the last rows of every head, the last one the last heads.
TEST_CASE_FIXTURE(Recorded, "lse and out of more than 2^30 rows") {
    if (!device.has_guard_pages()) return skip("results past 4 GiB: addresses are no host pointers here");
    HugeForward long_heads(device, context.get(),
                           "h=33 sq=134217728 skv=9 d=3 qs=0,0,0 kernel=tiles max_flops=100000000");
    run_segment(long_heads, 0);
    HugeForward many_heads(device, context.get(),
                           "b=268435456 h=2 sq=3 skv=9 d=3 qs=0,0,0 ks=0,27,3 vs=0,27,3 kernel=rows");
    run_segment(many_heads, static_cast<uint32_t>(many_heads.plan().dispatches.size() - 1));
}

TEST_CASE_FIXTURE(OnDevice, "lse and out of more than 2^30 rows on matrix units") {
    if (!device.has_guard_pages()) return skip("results past 4 GiB: addresses are no host pointers here");
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16))
        return skip("results past 4 GiB on matrix units: there are none");
    HugeForward forward(device, runtime.context(),
                        "h=33 sq=134217728 skv=9 d=8 qs=0,0,0 dtype=f16 kernel=matrix max_flops=100000000");
    run_segment(forward, 0);
}

// Scratch of 2^38 bytes is no allocation of any device here; the library is told otherwise, and uses its address only.
TEST_CASE_FIXTURE(Recorded, "parts of the output of more than 2^30 rows") {
    if (!device.has_guard_pages()) return skip("parts past 4 GiB: addresses are no host pointers here");
    between.largest_allocation = uint64_t{1} << 40;
    const Context context_of_large_device = between.context();
    const std::string text =
        "h=17 sq=268435456 skv=97 d=3 qs=0,0,0 kernel=tiles splits=3 max_flops=200000000 "
        "max_scratch=1099511627776";
    const auto plan = core_plan_of(context_of_large_device.get()->caps, parse_case(text, "here"), false);
    if (!plan && is_quirk(plan.failure().message)) return skip("parts past 4 GiB: " + plan.failure().message);
    HugeForward forward(device, context_of_large_device.get(), text);
    const auto& dispatches = forward.plan().dispatches;
    const auto is_merge = [&](const core::Dispatch& d) {
        return forward.plan().pipelines[d.pipeline].module.kernel == core::Kernel::combine;
    };
    const auto first_merge = std::find_if(dispatches.begin(), dispatches.end(), is_merge);
    REQUIRE(first_merge != dispatches.end());
    // All parts of the last rows of every head, then the last merge, which has these rows too.
    const WrittenRows rows = rows_of(forward.plan(), dispatches[0]),
                      merged = merged_rows(forward.plan(), dispatches.back());
    REQUIRE(merged.first <= rows.end - 1);
    forward.enable({rows.first_head, rows.end_head, std::min(rows.first, merged.first), rows.end});
    uint32_t parts = 0;
    while (rows_of(forward.plan(), dispatches[parts]).first == rows.first) parts++;
    CHECK(parts >= 3);
    forward.run(0, parts);
    forward.run(static_cast<uint32_t>(dispatches.size() - 1), 1);
    check_corners(forward, {rows.first_head, rows.end_head, std::max(rows.first, merged.first), rows.end});
}

// Each batch has 32 bytes of statistics, 72 or 36 of dbias, and 8 of lse.
TEST_CASE_FIXTURE(Recorded, "statistics, lse and dbias of a backward past 4 GiB") {
    if (!device.has_guard_pages()) return skip("statistics past 4 GiB: addresses are no host pointers here");
    between.largest_allocation = uint64_t{1} << 40;
    const Context large = between.context();
    CHECK(flaw_of_last_batch(device, large.get(), 65535 * 8192 + 7, "max_scratch=1099511627776") == "");
}

TEST_CASE_FIXTURE(Recorded, "statistics and dbias of a backward on matrix units past 4 GiB") {
    if (!device.has_guard_pages()) return skip("statistics past 4 GiB: addresses are no host pointers here");
    if (!device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return skip("statistics past 4 GiB: no matrix units");
    between.all_features = true;
    between.largest_allocation = uint64_t{1} << 40;
    const Context large = between.context();
    const std::string words = "dtype=f16 kernel=matrix_khr max_scratch=1099511627776";
    CHECK(flaw_of_last_batch(device, large.get(), 65535 * 2049 + 7, words) == "");
}
