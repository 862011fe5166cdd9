// Plans on matrix units: room for their rows, and what a probe tells of them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "device_tests/probe.hpp"
#include "plan/matrix.hpp"
#include "plan_flaws.hpp"
#include "plan_pieces.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;

TEST_CASE("matrix: a row for which the device has no room is passed over, and named where it is the last") {
    DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const Problem p =
        resolved(make_problem({128, 128}, {1, 2, 2, 300, 304}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16));
    const Plan usual = planned(caps, p);
    caps.max_shared_bytes = usual.tiles.shared_bytes + 1023;  // the compiler may need 1,024 bytes of its own
    const Plan next = planned(caps, p, kernel("matrix"));
    CHECK(next.tuning_row != usual.tuning_row);
    CHECK(next.tiles.shared_bytes < usual.tiles.shared_bytes);
    caps.max_shared_bytes = 1024;
    const auto refusal = [&](const Options& o) {
        const auto plan = make_plan(caps, p, o);
        return plan ? "" : plan.failure().field + ": " + plan.failure().message;
    };
    CHECK(refusal(kernel("matrix")).starts_with(": row matrix-d576: "));
    CHECK(refusal(kernel("matrix")).ends_with(" bytes of shared memory, the device has 1024"));
    // What is asked for is not passed over: the failure is that of the first row.
    CHECK(refusal(tuning("level=0", "matrix")).starts_with("options.tuning: "));
}

TEST_CASE("matrix: up to 16 query rows of a key head have a kernel of their own on NVIDIA's driver") {
    const DeviceCaps h200 = probed(matrix_device("nvidia_h200")), amd = probed(matrix_device("amd_gfx1201"));
    const auto decoding = [](uint32_t tokens) {
        return resolved(
            make_problem({128, 128}, {1, 16, 2, tokens, 700}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16));
    };
    CHECK_EQ(planned(h200, decoding(1)).kernel, "matrix_rows");
    CHECK_EQ(planned(h200, decoding(2)).kernel, "matrix_rows");
    CHECK_EQ(planned(h200, decoding(3)).kernel, "matrix");
    Options invariant;
    invariant.batch_invariant = true;
    CHECK_EQ(planned(h200, decoding(1), invariant).kernel, "matrix");
    DeviceCaps failed = h200;
    failed.verdicts.push_back(
        {false, "matrix_rows", VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_FLOAT16, "out[0] is 2 instead of 1"});
    CHECK_EQ(planned(failed, decoding(1)).kernel, "rows");
    // A CPU takes it where it is named.
    const Problem f32 = resolved(make_problem({64, 64}, {1, 2, 2, 1, 700}));
    Options rounds;
    rounds.precision = VKATTN_PRECISION_FLOAT16;
    CHECK_EQ(planned(matrix_device("lavapipe"), f32, rounds).kernel, "rows");
    rounds.kernel = "matrix_rows";
    CHECK_EQ(planned(matrix_device("lavapipe"), f32, rounds).kernel, "matrix_rows");
    const auto refused = make_plan(amd, decoding(1), kernel("matrix_rows"));
    REQUIRE(!refused);
    CHECK_EQ(refused.failure().message, "it has no tuning row for this kind of device");
    CHECK_EQ(refused.failure().field, "options.kernel");
}

namespace {

// What a probe of a 16x16x16 unit with 32 invocations would write, by a function from (matrix, invocation,
// element) to a place.
enum Matrix { accumulator, left_operand, right_operand };
template <class PlaceOf>
std::vector<std::byte> probe_results(size_t shapes, PlaceOf place_of, uint32_t operand_elements = 8) {
    std::vector<uint32_t> words(shapes * 3 * PROBE_WORDS);
    for (size_t matrix = 0; matrix < shapes * 3; matrix++) {
        uint32_t* at = words.data() + matrix * PROBE_WORDS;
        at[0] = matrix % 3 == accumulator ? 8 : operand_elements;
        for (uint32_t i = 0; i < 32; i++)
            for (uint32_t e = 0; e < at[0]; e++)
                at[1 + i * PROBE_ELEMENTS + e] = place_of(static_cast<Matrix>(matrix % 3), i, e);
    }
    std::vector<std::byte> bytes(words.size() * 4);
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
}

uint32_t nvidia_place(uint32_t i, uint32_t e) {
    const uint32_t row = i / 4 + 8 * (e / 4), column = 2 * (i % 4) + e % 2 + 8 * (e / 2 % 2);
    return row * 256 + column;
}

DeviceCaps probed(DeviceCaps caps, const std::vector<std::byte>& results) {
    note_probe(caps, results.data());
    return caps;
}

}  // namespace

TEST_CASE("matrix: a shape without rows, columns or depth is not used") {
    for (uint32_t core::MatrixShape::*size :
         {&core::MatrixShape::m, &core::MatrixShape::n, &core::MatrixShape::k}) {
        core::MatrixShape shape{16, 16, 16, VKATTN_DTYPE_FLOAT16};
        CHECK(core::is_usable(shape, 32));
        shape.*size = 0;
        CHECK_FALSE(core::is_usable(shape, 32));
    }
}

TEST_CASE("probe: a pipeline for each shape that the kernel can work with, and results one after the other") {
    for (const auto& [name, caps] : matrix_devices()) {
        CAPTURE(name);
        const Plan plan = probe_plan(caps);
        std::vector<core::MatrixShape> shapes;
        const uint32_t lanes = caps.min_subgroup_size;
        for (const core::MatrixShape& s : caps.matrices)
            if (s.m % 8 == 0 && s.n % 8 == 0 && s.k % 8 == 0 && std::max(s.m, s.k) <= 64 && 32 % s.n == 0 &&
                s.m * s.n % (2 * lanes) == 0)
                shapes.push_back(s);
        REQUIRE(plan.pipelines.size() == shapes.size());
        REQUIRE(plan.dispatches.size() == shapes.size());
        CHECK(probe_size(caps) == shapes.size() * 3 * PROBE_WORDS * 4);
        CHECK(pipelines_flaw(plan, true) == "");
        for (uint32_t i = 0; i < shapes.size(); i++) {
            const core::Pipeline& pipeline = plan.pipelines[i];
            const core::MatrixShape& s = shapes[i];
            CHECK_EQ(name_of(pipeline),
                     s.dtype == VKATTN_DTYPE_FLOAT16 ? "probe_matrix_f16" : "probe_matrix_bf16");
            CHECK(constants_flaw(pipeline, {{"threads", lanes},
                                            {"subgroup_size", lanes},
                                            {"matrix_m", s.m},
                                            {"matrix_n", s.n},
                                            {"matrix_k", s.k}}) == "");
            CHECK(words_flaw(pipeline, {}) == "");
            const core::Patch* const results = find_patch(pipeline, "results");
            REQUIRE(results != nullptr);
            CHECK(pipeline.patches.size() == 1);
            CHECK(results->region == core::Region::out);
            CHECK(results->add == uint64_t{i} * 3 * PROBE_WORDS * 4);
            CHECK(pipeline.reads == 0);
            CHECK(pipeline.writes == bit(core::Region::out));
            CHECK(!pipeline.module.has(core::macros::ROLLED));
            CHECK(plan.dispatches[i].pipeline == i);
            CHECK(plan.dispatches[i].groups == std::array<uint32_t, 3>{1, 1, 1});
        }
    }
}

TEST_CASE("probe: a layout of bits is found, any other is not trusted") {
    DeviceCaps caps = matrix_device("nvidia_h200");
    std::erase_if(caps.matrices, [](const auto& s) { return s.n != 16 || s.k != 16; });
    const size_t shapes = probe_plan(caps).dispatches.size();
    REQUIRE(shapes == 2);  // float16 and bfloat16
    const auto same = probed(
        caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) { return nvidia_place(i, e); }));
    // Rows: bits 2, 3, 4 of the invocation, bit 2 of the element; columns: element 0, invocation 0, 1, element 1.
    CHECK(same.matrices[0].layout == 0x9108a432);
    CHECK(same.matrices[0].left_alike);
    const auto other_left =
        probed(caps, probe_results(shapes, [](Matrix matrix, uint32_t i, uint32_t e) {
                   return matrix == left_operand ? i % 16 * 256 + i / 16 * 8 + e : nvidia_place(i, e);
               }));
    CHECK(other_left.matrices[0].layout == 0x9108a432);
    CHECK(!other_left.matrices[0].left_alike);
    const auto shuffled = probed(caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) {
                                     const uint32_t place = nvidia_place(i, e);
                                     return (place / 256 + place % 3) % 16 * 256 + place % 256;
                                 }));
    CHECK(shuffled.matrices[0].layout == 0);
    CHECK(!shuffled.matrices[0].left_alike);
    const auto nothing = probed(caps, std::vector<std::byte>(shapes * core::probe_bytes));
    CHECK(nothing.matrices[0].layout == 0);
    const auto twice = probed(
        caps, probe_results(shapes, [](Matrix, uint32_t i, uint32_t e) { return nvidia_place(i / 2, e); }));
    CHECK(twice.matrices[0].layout == 0);
}

TEST_CASE(
    "probe: what was found is kept as text, which is not used with other features or where it is damaged") {
    for (const auto& [name, unprobed] : matrix_devices()) {
        CAPTURE(name);
        DeviceCaps found = unprobed;
        for (size_t i = 0; i < found.matrices.size(); i++) {
            core::MatrixShape& s = found.matrices[i];
            s.layout = 0x9108a432 + static_cast<uint32_t>(i);
            s.turned_layout = UINT32_MAX - static_cast<uint32_t>(i);
            s.left_alike = i % 2 == 0;
            s.exchanges = i % 3 == 0;
            s.uneven = i % 3 == 1;
        }
        const std::string text = probe_text(found, "1.2.3");
        DeviceCaps told = unprobed;
        REQUIRE(note_probe_text(told, text, "1.2.3"));
        CHECK(told.matrices == found.matrices);
        const auto is_used = [](DeviceCaps device, const std::string& of) {
            return note_probe_text(device, of, "1.2.3");
        };
        DeviceCaps other = unprobed;
        other.int64 = !other.int64;
        CHECK_FALSE(is_used(other, text));
        other = unprobed;
        other.full_subgroups = false;
        CHECK_FALSE(is_used(other, text));
        other = unprobed;
        other.matrices.pop_back();
        CHECK_FALSE(is_used(other, text));
        CHECK_FALSE(is_used(unprobed, probe_text(other, "1.2.3")));
        CHECK_FALSE(is_used(unprobed, probe_text(found, "1.2.4")));
        CHECK_FALSE(is_used(unprobed, text.substr(0, text.size() / 2)));
    }
}

TEST_CASE("probe: turned products are taken where accumulators become right operands") {
    DeviceCaps caps = matrix_device("amd_navi31");
    const size_t shapes = probe_plan(caps).dispatches.size();
    const auto row_of = [](bool alternates, uint32_t i, uint32_t e) {
        return alternates ? 2 * e + i / 16 : i / 16 * 8 + e;
    };
    const auto rdna4 = [&](Matrix matrix, uint32_t i, uint32_t e) {
        const uint32_t along = row_of(false, i, e);
        return matrix == left_operand ? i % 16 * 256 + along : along * 256 + i % 16;
    };
    const auto rdna3 = [&](Matrix matrix, uint32_t i, uint32_t e) {
        if (matrix == accumulator) return row_of(true, i, e) * 256 + i % 16;
        return matrix == left_operand ? i % 16 * 256 + e : e * 256 + i % 16;
    };
    const auto shape_of = [&](const DeviceCaps& device, const auto& place_of, uint32_t elements) {
        return probed(device, probe_results(shapes, place_of, elements)).matrices[0];
    };
    // Queries: invocation bits 0 .. 3; keys: element bits 0 .. 2, invocation bit 4.
    const auto alike = shape_of(caps, rdna4, 8);
    CHECK(alike.turned_layout == 0x4a983210);
    CHECK(!alike.exchanges);
    CHECK(!alike.left_alike);
    const auto exchanged = shape_of(caps, rdna3, 16);
    CHECK(exchanged.turned_layout == 0x4a983210);
    CHECK(exchanged.exchanges);
    DeviceCaps bf16 = caps;  // whose kernels exchange nothing
    for (auto& shape : bf16.matrices) shape.dtype = VKATTN_DTYPE_BFLOAT16;
    CHECK(shape_of(bf16, rdna4, 8).turned_layout == 0x4a983210);
    CHECK(shape_of(bf16, rdna3, 16).turned_layout == 0);
    CHECK(exchanged.layout == 0x3210a984);
    // Any other operand is not trusted.
    for (const Matrix other : {left_operand, right_operand})
        for (const bool alternates : {false, true}) {
            const auto transposed = [&](Matrix matrix, uint32_t i, uint32_t e) {
                const uint32_t place = alternates ? rdna3(matrix, i, e) : rdna4(matrix, i, e);
                return matrix == other ? place % 256 * 256 + place / 256 : place;
            };
            const auto shape = shape_of(caps, transposed, alternates ? 16 : 8);
            CAPTURE(int{other});
            CAPTURE(alternates);
            CHECK(shape.turned_layout == 0);
            CHECK(!shape.exchanges);
        }
    caps.int64 = false;
    CHECK(shape_of(caps, rdna4, 8).turned_layout == 0);
}

TEST_CASE("matrix: heads and slices that pass 2^32 together are for another kernel") {
    const DeviceCaps& caps = matrix_device("amd_navi31");
    const auto problem = [](uint32_t batch) {
        return resolved(
            make_problem({64, 576}, {batch, 1, 1, 97, 97}, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16));
    };
    const Plan some = planned(caps, problem(1000)), most = planned(caps, problem(INT32_MAX));
    REQUIRE_EQ(some.kernel, "matrix");
    REQUIRE_EQ(constant(some.pipelines.front(), "slices"), 5);
    CHECK_EQ(most.kernel, "tiles_dot");
    const auto by_name = make_plan(caps, problem(INT32_MAX), kernel("matrix"));
    REQUIRE_FALSE(by_name);
    CHECK_EQ(by_name.failure().message, "2147483647 heads of all batches in 5 slices pass 2^32");
}

namespace {

// The dispatches of the pass that spills dS begin at so many steps, in all; 0 if nothing is spilled.
size_t spans_of(const Plan& plan) {
    std::set<uint32_t> begins;
    for (const core::Dispatch& d : plan.dispatches)
        if (writes(pipeline_of(plan, d), core::Region::spill)) begins.insert(d.cut.first_step);
    CHECK_EQ(begins.empty(), reader_of(plan) == nullptr);
    return begins.size();
}

uint64_t bytes_of(const Plan& plan, core::Region region) {
    const auto found = std::ranges::find(plan.scratch, region, &core::ScratchRegion::region);
    return found != plan.scratch.end() ? found->size_bytes : 0;
}

VkattnProblem in_halves(const Shape& shape, HeadDims dims = d128) {
    return make_problem(dims, shape, Layout::contiguous, 16, VKATTN_DTYPE_FLOAT16);
}

Plan spilling(const DeviceCaps& caps, const Shape& shape, uint64_t scratch = 0, HeadDims dims = d128,
              const char* numbers = "") {
    const Problem p = resolved(in_halves(shape, dims));
    Options o = tuning(numbers, "matrix");
    o.max_scratch_bytes = scratch;
    Plan plan = planned(caps, p, make_backward(p), o);
    CHECK_EQ(flaw_of(caps, p, make_backward(p), plan, o), "");
    return plan;
}

}  // namespace

TEST_CASE("spill: all of dS where there is room, spans of it in the room that there is, or nothing") {
    DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const Plan whole = spilling(caps, square(1, 16, 4096));
    CHECK_EQ(spans_of(whole), 1);
    CHECK_FALSE(is_cut(whole));
    CHECK_EQ(bytes_of(whole, core::Region::spill), 16 * 4096 * 4096 * 2);
    CHECK_EQ(spans_of(spilling(caps, square(1, 16, 4096), 0, d64)), 0);
    const uint64_t gib = uint64_t{1} << 30, mib = uint64_t{1} << 20;
    for (const uint32_t seqlen : {65536u, 262144u}) {
        const Plan plan = spilling(caps, square(1, 1, seqlen), 0, d128, "spill=2");
        CHECK_GT(spans_of(plan), 1);
        CHECK(is_cut(plan));
        CHECK_LE(bytes_of(plan, core::Region::spill), gib);
        CHECK_LE(plan.scratch_bytes, gib + gib / 2);
        const Plan limited = spilling(caps, square(1, 1, seqlen), gib, d128, "spill=2");
        CHECK_GT(spans_of(limited), 1);
        CHECK_LE(limited.scratch_bytes, gib);
    }
    // Strips have whole GiB of dS where these make fewer of them.
    CHECK_EQ(bytes_of(spilling(caps, square(4, 16, 4096)), core::Region::spill), gib);
    // Several heads share a strip of a part of their rows: of one head alone, too few workgroups would read it.
    const Plan shared = spilling(caps, square(1, 16, 16384), gib / 2);
    CHECK_GT(shared.spill_heads, 1);
    CHECK_GT(spans_of(shared), 1);
    CHECK_LE(shared.scratch_bytes, gib / 2);
    // Two passes take the place of three where scratch holds too few rows.
    const Plan none = spilling(caps, square(1, 16, 4096), 5 * mib);
    CHECK_EQ(spans_of(none), 0);
    CHECK_LE(none.scratch_bytes, 5 * mib);
    CHECK_EQ(count_of(none, Kind::dquery), 1);
    caps.device_local_bytes = 4 * gib;
    const Plan small = spilling(caps, square(1, 16, 4096));
    CHECK_EQ(bytes_of(small, core::Region::spill), 256 * mib);
    CHECK_EQ(spans_of(small), 1);
    CHECK_LE(bytes_of(spilling(caps, square(1, 1, 65536), 0, d128, "spill=2"), core::Region::spill),
             256 * mib);
    // The sixteenth does not bind a caller who sets max_scratch_bytes.
    CHECK_EQ(bytes_of(spilling(caps, square(1, 16, 4096), gib), core::Region::spill), 512 * mib);
}

TEST_CASE("spill: the last pass comes again just where a mask or a block map hides keys") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const VkattnProblem plain = in_halves(square(1, 4, 512));
    for (const VkattnMaskType mask : {VKATTN_MASK_NONE, VKATTN_MASK_BOOL, VKATTN_MASK_FLOAT}) {
        const Problem p = resolved(masked(plain, mask, MaskShape::shared));
        const Plan plan = planned(caps, p, make_backward(p));
        CHECK_EQ(flaw_of(caps, p, make_backward(p), plan), "");
        REQUIRE_NE(reader_of(plan), nullptr);
        CHECK_EQ(count_of(plan, Kind::dquery), mask == VKATTN_MASK_NONE ? 1 : 2);
    }
}

TEST_CASE("spill: dbias comes of it just where strips hold all that share an element of the mask") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const auto is_found = [&](const VkattnProblem& given, MaskShape shape, uint64_t scratch = 0,
                              const char* numbers = "spill=2") {
        const Problem p = resolved(masked(given, VKATTN_MASK_FLOAT, shape));
        Options o = tuning(numbers, "matrix");
        o.max_scratch_bytes = scratch;
        const Plan plan = planned(caps, p, make_backward(p), o);
        CHECK_EQ(flaw_of(caps, p, make_backward(p), plan, o), "");
        return count_of(plan, Kind::spilled_bias) != 0;
    };
    for (const MaskShape shape :
         {MaskShape::whole, MaskShape::all_heads, MaskShape::all_batches, MaskShape::shared})
        for (const Shape& heads :
             {Shape{2, 6, 6, 2048, 700}, Shape{3, 6, 2, 2048, 700}, Shape{1, 6, 1, 300, 512}}) {
            CHECK(is_found(in_halves(heads), shape));
            for (uint64_t mib = 1; mib <= 64; mib *= 2) is_found(in_halves(heads), shape, mib << 20);
        }
    const VkattnProblem plain = in_halves({2, 4, 2, 2048, 1024});
    const uint64_t room = uint64_t{12} << 20;
    CHECK(is_found(plain, MaskShape::whole, room));
    CHECK_FALSE(is_found(plain, MaskShape::shared, room));
    CHECK_FALSE(is_found(plain, MaskShape::keys));
    CHECK_FALSE(is_found(plain, MaskShape::queries));
    // Tiles of dbias have whole steps.
    CHECK_FALSE(
        is_found(in_halves({2, 4, 2, 2048, 1024}, d64), MaskShape::whole, 0,
                 "q_subgroups=3,q_row_blocks=1,kv_walked=48,spill=2,spilled_subgroups=3,spilled_row_blocks=1,"
                 "spilled_slices=1"));
    VkattnProblem capped = plain;
    capped.softcap = 30;
    CHECK_FALSE(is_found(capped, MaskShape::whole));
}

TEST_CASE("spill: where strips are large enough, or where tuning says so") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const Problem p = resolved(in_halves(square(1, 1, 262144))),
                  small = resolved(in_halves(square(1, 4, 512)));
    const auto plan_with = [&](const Problem& problem, const char* numbers) {
        return make_plan(caps, problem, make_backward(problem), tuning(numbers, "matrix"));
    };
    const auto spills = [](const auto& plan) { return plan && reader_of(*plan) != nullptr; };
    CHECK_FALSE(spills(plan_with(p, "")));
    CHECK(spills(plan_with(p, "spill=2")));
    CHECK(spills(plan_with(small, "")));
    CHECK_NE(describe(*plan_with(small, "")).find(R"("spill":{"bytes":2097152,"bytes_of_all":2097152})"),
             std::string::npos);
    // Numbers that do not go with it turn it off.
    for (const char* other : {"spill=0", "kv_slices=2", "q_subgroups=12", "spilled_walked=0"}) {
        CAPTURE(other);
        const auto plan = plan_with(small, other);
        REQUIRE(plan);
        CHECK_FALSE(spills(plan));
    }
    for (const char* refused :
         {"spill=3", "spill=1,kv_slices=2", "spill=2,q_subgroups=12", "spill=1,spilled_slices=3",
          "kv_walked=0", "q_subgroups=0", "kv_row_blocks=0", "spill=2,spilled_walked=0"})
        CHECK_FALSE(plan_with(small, refused));
}

TEST_CASE("pairs do not lag where a kernel that rounds dS otherwise may find dquery in place of spilled dS") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const auto numbers = [&](const VkattnProblem& given) {
        const Problem p = resolved(given);
        return values_in(planned(caps, p, make_backward(p)).tuning);
    };
    const VkattnProblem plain = in_halves(square(2, 16, 4096), {256, 256});
    CHECK_EQ(numbers(plain).at("kv_paired"), 2);
    const auto masked_numbers = numbers(masked(plain, VKATTN_MASK_BOOL, MaskShape::shared));
    CHECK_EQ(masked_numbers.at("kv_paired"), 1);
    CHECK_EQ(masked_numbers.at("spill"), 1);
}

TEST_CASE("rows of a backward on matrix units are far where a head reaches beyond 2^35 bytes") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    for (const uint64_t more : {uint64_t{0}, uint64_t{8}}) {
        VkattnProblem given = in_halves({1, 1, 1, 64, 1 << 20});
        given.key_strides.seq = (uint64_t{1} << 14) + more;
        const Problem p = resolved(given);
        const Plan plan = planned(caps, p, make_backward(p));
        CHECK_EQ(flaw_of(caps, p, make_backward(p), plan), "");
        for (const core::Pipeline& x : plan.pipelines)
            if (on_matrices(x)) CHECK_EQ(constant(x, "far_rows"), more / 8);
    }
}

TEST_CASE("spill: rows far apart for the pass that reads dS, whose tiles have most rows") {
    const DeviceCaps caps = probed(matrix_device("nvidia_h200"));
    const Problem p = resolved(in_halves(square(1, 1, 2048)));
    VkattnBackward given = core::default_backward();
    given.dquery_strides.seq = (uint64_t{1} << 30) / 200 / 8 * 8;
    const core::Backward b = resolved(p, given);
    const Plan plan = planned(caps, p, b);
    REQUIRE_NE(reader_of(plan), nullptr);
    CHECK_EQ(flaw_of(caps, p, b, plan), "");
}
