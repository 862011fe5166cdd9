// Faults planted into sound plans of every kernel: the checks notice each of them.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>
#include <set>
#include <string>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_flaws.hpp"
#include "plan_pieces.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;

// A sound plan is made of these: it is a forward's, a backward's if there is one, or a combine's.
struct Sound {
    const char* name;
    DeviceCaps caps;
    Problem problem;
    Options options;
    std::optional<core::Backward> backward;
    std::optional<core::Combine> combine = std::nullopt;
};

// This plants one fault after the other, each in a copy of the plan, and keeps those that no check notices.
class Faults {
  public:
    explicit Faults(const Sound& s) : s_(s) {
        auto plan = s.combine    ? make_plan(s.caps, *s.combine)
                    : s.backward ? make_plan(s.caps, s.problem, *s.backward, s.options)
                                 : make_plan(s.caps, s.problem, s.options);
        if (!plan) throw std::runtime_error(plan.failure().message);
        plan_ = std::move(*plan);
    }

    const Plan& plan() const { return plan_; }
    std::string flaw() const { return flaw_of_plan(plan_); }
    template <class Change>
    void plant(const std::string& what, const Change& change) {
        Plan copy = plan_;
        change(copy);
        planted_++;
        if (flaw_of_plan(copy).empty()) unnoticed_ += what + "; ";
    }
    const std::string& unnoticed() const { return unnoticed_; }
    size_t planted() const { return planted_; }

  private:
    std::string flaw_of_plan(const Plan& plan) const {
        if (s_.combine) return flaw_of(s_.caps, *s_.combine, plan);
        return s_.backward ? flaw_of(s_.caps, s_.problem, *s_.backward, plan, s_.options)
                           : flaw_of(s_.caps, s_.problem, plan, s_.options);
    }

    const Sound& s_;
    Plan plan_;
    std::string unnoticed_;
    size_t planted_ = 0;
};

template <class Bytes>
void flip(Bytes& bytes, size_t word, uint32_t bits) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + 4 * word, 4);
    value ^= bits;
    std::memcpy(bytes.data() + 4 * word, &value, 4);
}

void plant_in_constants(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    for (size_t i = 0; i < pipeline.constants.size(); i++)
        for (const uint32_t change : {1u, 2u, 1u << 16})
            f.plant(fmt::format("{}constant {} ^ {}", of, i, change),
                    [&](Plan& p) { p.pipelines[at].constants[i] ^= change; });
    for (const core::Module& module : core::built_modules())
        if (module != pipeline.module)
            f.plant(fmt::format("{}as {}", of, core::name_of(module)),
                    [&](Plan& p) { p.pipelines[at].module = module; });
    f.plant(of + "a variant", [&](Plan& p) { p.pipelines[at].module.variant = 1; });
    f.plant(of + "of_tuning_row",
            [&](Plan& p) { p.pipelines[at].of_tuning_row = !p.pipelines[at].of_tuning_row; });
}

void plant_in_patches(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    const auto plant = [&](const char* what, const auto& change) {
        f.plant(of + what, [&](Plan& p) { change(p.pipelines[at].patches); });
    };
    for (size_t i = 0; i < pipeline.patches.size(); i++) {
        plant("patch elsewhere", [&](auto& all) { all[i].at += 8; });
        plant("patch added to", [&](auto& all) { all[i].add += 16; });
        plant("patch of another region", [&](auto& all) {
            all[i].region = all[i].region == core::Region::dbias ? core::Region::dkey : core::Region::dbias;
        });
        plant("no patch", [&](auto& all) { all.erase(all.begin() + ptrdiff_t(i)); });
        plant("patch twice", [&](auto& all) { all.push_back(all[i]); });
    }
}

void plant_in_pipeline(Faults& f, size_t at) {
    const core::Pipeline& pipeline = f.plan().pipelines[at];
    const std::string of = fmt::format("{} ", name_of(pipeline));
    // No shader reads this: the gradient of the mask is not cut.
    const core::FieldInfo* num_steps =
        kind_of(pipeline) == Kind::dbias ? find_field(pipeline.module.kernel, "num_steps") : nullptr;
    // The flipped bit is a high one because the last bits of a float are rounding.
    for (size_t word = 0; word < pipeline.push.size() / 4; word++)
        if (num_steps == nullptr || 4 * word != num_steps->offset_bytes)
            f.plant(fmt::format("{}push word {}", of, word),
                    [&](Plan& p) { flip(p.pipelines[at].push, word, 1u << 20); });
    for (uint32_t r = 0; r < static_cast<uint32_t>(core::Region::count); r++) {
        const uint32_t region = core::bit(static_cast<core::Region>(r));
        // These passes may load what they do not use.
        const bool may = (kind_of(pipeline) == Kind::classes || kind_of(pipeline) == Kind::delta) &&
                         (region & all_optional_arrays()) != 0;
        if (!may) f.plant(of + "reads", [&](Plan& p) { p.pipelines[at].reads ^= region; });
        f.plant(of + "writes", [&](Plan& p) { p.pipelines[at].writes ^= region; });
    }
    if (f.plan().kernel != "materialized")  // which may have pipelines to spare
        f.plant(of + "twice", [&](Plan& p) { p.pipelines.push_back(pipeline); });
    f.plant(of + "of another kind", [&](Plan& p) { std::swap(p.pipelines[at], p.pipelines.emplace_back()); });
}

void plant_in_dispatch(Faults& f, size_t at) {
    const core::Dispatch& d = f.plan().dispatches[at];
    const std::string of = fmt::format("dispatch {} ", at);
    const auto plant = [&](const std::string& what, const auto& change) {
        f.plant(of + what, [&](Plan& p) { change(p.dispatches[at]); });
    };
    for (uint32_t i = 0; i < f.plan().pipelines.size() + 2; i++)
        if (i != d.pipeline) plant("another pipeline", [&](core::Dispatch& x) { x.pipeline = i; });
    for (size_t i = 0; i < 3; i++) {
        plant("more groups", [&](core::Dispatch& x) { x.groups[i]++; });
        plant("fewer groups", [&](core::Dispatch& x) { x.groups[i]--; });
        plant("begins elsewhere", [&](core::Dispatch& x) { x.cut.first[i]++; });
        plant("begins before", [&](core::Dispatch& x) { x.cut.first[i]--; });
    }
    plant("first step", [&](core::Dispatch& x) { x.cut.first_step++; });
    plant("end step", [&](core::Dispatch& x) { x.cut.end_step++; });
    plant("barrier", [&](core::Dispatch& x) { x.barrier_before = !x.barrier_before; });
    // The least that a merge costs is not known, and the baseline does not tell what it costs.
    const Kind kind = kind_of(f.plan(), d);
    if (kind != Kind::combine && kind != Kind::arguments && f.plan().kernel != "materialized")
        plant("flops", [&](core::Dispatch& x) { x.flops = 1; });
    f.plant(of + "is missing", [&](Plan& p) { p.dispatches.erase(p.dispatches.begin() + ptrdiff_t(at)); });
    f.plant(of + "twice", [&](Plan& p) { p.dispatches.insert(p.dispatches.begin() + ptrdiff_t(at), d); });
}

// Plants faults in each pipeline, and in the first and the last dispatch that has it: the others are like these.
void plant_in_work(Faults& f) {
    for (size_t i = 0; i < f.plan().pipelines.size(); i++) {
        std::vector<size_t> with;
        for (size_t at = 0; at < f.plan().dispatches.size(); at++)
            if (f.plan().dispatches[at].pipeline == i) with.push_back(at);
        if (with.empty()) continue;
        plant_in_constants(f, i);
        plant_in_patches(f, i);
        plant_in_pipeline(f, i);
        plant_in_dispatch(f, with.front());
        if (with.size() > 1) plant_in_dispatch(f, with.back());
    }
}

// Plants faults in everything else that is no text.
void plant_in_plan(Faults& f) {
    for (const auto at :
         {&core::Tiles::tile_q, &core::Tiles::tile_kv, &core::Tiles::threads, &core::Tiles::shared_bytes})
        f.plant("tiles", [&](Plan& p) { p.tiles.*at += 16; });
    for (const char* name : {"rows", "tiles", "matrix", "materialized"})
        if (f.plan().kernel != name) f.plant(name, [&](Plan& p) { p.kernel = name; });
    f.plant("num_splits", [](Plan& p) { p.num_splits++; });
    for (const auto dtype : {VKATTN_DTYPE_FLOAT32, VKATTN_DTYPE_FLOAT16, VKATTN_DTYPE_BFLOAT16})
        if (dtype != f.plan().operands) f.plant("operands", [&](Plan& p) { p.operands = dtype; });
    for (size_t word = 0; word < f.plan().arguments.size() / 4; word++)
        f.plant(fmt::format("argument {}", word), [&](Plan& p) { flip(p.arguments, word, 1); });
    for (size_t i = 0; i < f.plan().argument_patches.size(); i++)
        f.plant("argument patch", [&](Plan& p) { p.argument_patches[i].at ^= 8; });
    for (size_t i = 0; i < f.plan().scratch.size(); i++) {
        f.plant("scratch offset", [&](Plan& p) { p.scratch[i].offset_bytes += core::scratch_alignment; });
        f.plant("scratch size", [&](Plan& p) { p.scratch[i].size_bytes -= 4; });
    }
    f.plant("scratch_bytes", [](Plan& p) { p.scratch_bytes += core::scratch_alignment; });
    if (!f.plan().refused.empty()) f.plant("refused", [](Plan& p) { p.refused.pop_back(); });
    f.plant("another pipeline", [](Plan& p) { p.pipelines.emplace_back(); });
    for (size_t i = 0; i < f.plan().caller_arrays.size(); i++) {
        const auto plant = [&](const char* what, const auto& change) {
            f.plant(what, [&](Plan& p) { change(p.caller_arrays); });
        };
        plant("array not checked", [&](auto& all) { all.erase(all.begin() + ptrdiff_t(i)); });
        plant("array held to less", [&](auto& all) { all[i].alignment_bytes /= 2; });
        plant("array may be null", [&](auto& all) { all[i].may_be_null = !all[i].may_be_null; });
        plant("array is not looked at", [&](auto& all) { all[i].is_used = false; });
        plant("output or not", [&](auto& all) { all[i].is_output = !all[i].is_output; });
    }
}

// Each number of the tuning's text, but these, is replaced by another, and is left out.
void plant_in_tuning(Faults& f, const std::set<std::string>& but) {
    const std::string text = f.plan().tuning;
    for (const auto& [name, value] : values_in(text)) {
        if (but.count(name) != 0) continue;
        const std::string key = name + "=";
        const size_t at = ("," + text).find("," + key) + key.size(),
                     end = std::min(text.find(',', at), text.size());
        f.plant("tuning " + name, [&, number = value](Plan& p) {
            p.tuning = text.substr(0, at) + std::to_string(number + 1) + text.substr(end);
        });
        f.plant("tuning without " + name, [&](Plan& p) {
            p.tuning = text.substr(0, at - key.size()) + text.substr(std::min(end + 1, text.size()));
        });
    }
}

VkattnProblem given(HeadDims dims, const Shape& shape, Layout layout = Layout::contiguous,
                    VkattnDtype dtype = f32) {
    return make_problem(dims, shape, layout, 16, dtype);
}

VkattnProblem given(HeadDims dims, const Shape& shape, VkattnDtype dtype) {
    return given(dims, shape, Layout::contiguous, dtype);
}

VkattnProblem with_softcap(VkattnProblem p) {
    p.softcap = 30;
    return p;
}

VkattnProblem with_slopes(VkattnProblem p) {
    p.slopes = VKATTN_SLOPES_PER_BATCH;
    return p;
}

VkattnProblem with_sinks(VkattnProblem p) {
    p.sinks = 1;
    return p;
}

VkattnProblem with_types(VkattnProblem p) {
    p.key_dtype = VKATTN_DTYPE_Q8_0;
    p.value_dtype = VKATTN_DTYPE_FLOAT8_E4M3;
    p.value_scales = VKATTN_SCALES_PER_ROW;
    return p;
}

VkattnProblem with_blocks(VkattnProblem p) {
    p.block_map = 1;
    p.block_map_heads = p.num_heads_q;
    p.block_rows = 64;
    return p;
}

VkattnProblem with_lengths(VkattnProblem p) {
    p.kv_lengths = 1;
    p.align = VKATTN_ALIGN_OFFSETS;
    return p;
}

Sound forward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, const Options& o = {}) {
    return {name, caps, resolved(p), o, {}};
}

Sound backward(const char* name, const DeviceCaps& caps, const VkattnProblem& p, bool dlse = false,
               const Options& o = {}) {
    return {name, caps, resolved(p), o, make_backward(resolved(p), dlse)};
}

Options in_parts(Options o) {
    o.num_splits = 3;
    return o;
}

Options invariant(Options o) {
    o.batch_invariant = true;
    return o;
}

Options rounded(Options o) {
    o.precision = VKATTN_PRECISION_FLOAT16;
    return o;
}

// dS is spilled in so much scratch, however long strips take.
Options spilling(uint64_t scratch) {
    Options o = limited(0, scratch, "matrix");
    o.tuning = "spill=2";
    return o;
}

// `but`: numbers of the tuning that a plan may have more than one value of. A combine has none, and no more than work.
void check_faults(const Sound& s, bool on_units = false, const std::set<std::string>& but = {}) {
    INFO(std::string(s.name));
    Faults f(s);
    REQUIRE_EQ(f.flaw(), "");
    REQUIRE_EQ(on_matrices(f.plan()), on_units);
    plant_in_work(f);
    if (!s.combine) plant_in_plan(f);
    if (!s.combine && !(on_units && s.backward)) plant_in_tuning(f, but);
    CHECK_EQ(f.unnoticed(), "");
    CHECK_GT(f.planted(), 200);
}

DeviceCaps without_16bit_storage(DeviceCaps caps) {
    caps.storage_16bit = false;
    return caps;
}

}  // namespace

TEST_CASE("faults: forward of the portable kernels") {
    const DeviceCaps &h200 = profile("nvidia_h200"), &navi = profile("amd_navi31"),
                     &cpu = profile("lavapipe");
    const VkattnProblem plain = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd);
    const Shape decode{2, 8, 2, 1, 4096};
    for (const Sound& s :
         {forward("softcap", h200, with_softcap(plain)),
          forward("block map", h200, with_blocks(given(d64, square(2, 4, 300), f16))),
          forward("lengths, offsets", cpu, with_lengths(plain)),
          forward("packed words", without_16bit_storage(navi),
                  given(d64, square(2, 2, 300), Layout::padded, f16)),
          forward("wide", navi, given(d64, square(2, 2, 300), Layout::wide, bf16)),
          forward("classes", h200,
                  masked(given(d64, {2, 8, 2, 700, 900}), VKATTN_MASK_FLOAT, MaskShape::all_batches)),
          forward("parts", cpu, given(d128, {2, 8, 2, 300, 3000, true, 900}), in_parts(kernel("tiles"))),
          forward("cut", h200, given(d64, square(2, 4, 2048)), limited(1'000'000'000)),
          forward("invariant", cpu, given(d64, {2, 8, 2, 40, 3000}, f16), invariant({})),
          forward("rows", h200, given(d128, decode, f16), kernel("rows")),
          forward("rows on matrix units", h200, given(d128, decode, f16)),
          forward("rows in parts", cpu, given(d64, decode), in_parts({})),
          forward("slopes and sinks, in parts", cpu, with_sinks(with_slopes(given(d64, decode))),
                  in_parts({}))})
        check_faults(s);
}

TEST_CASE("faults: the baseline") {
    Options o = kernel("materialized");
    o.max_scratch_bytes = 1'000'000;
    const VkattnProblem p = given({72, 40}, {2, 6, 2, 97, 203, true});
    check_faults(forward("forward", profile("lavapipe"), p, o));
    check_faults(
        forward("forward, wide", profile("nvidia_h200"), given(d64, square(2, 2, 97), Layout::wide), o));
    check_faults(backward("backward", profile("nvidia_h200"), p, false, o));
}

TEST_CASE("faults: backward of the portable kernels") {
    const DeviceCaps &h200 = profile("nvidia_h200"), &navi = profile("amd_navi31"),
                     &cpu = profile("lavapipe");
    const VkattnProblem plain = given({111, 59}, {2, 6, 2, 300, 700, true}, Layout::bshd);
    for (const Sound& s :
         {backward("plain", h200, given(d64, {2, 4, 2, 300, 500, true})),
          backward("lengths, offsets, softcap, dlse", cpu, with_softcap(with_lengths(plain)), true),
          backward("gradient of the mask, classes", h200,
                   masked(given(d64, {2, 4, 2, 700, 900}, f16), VKATTN_MASK_FLOAT, MaskShape::all_heads),
                   true),
          backward("packed words", without_16bit_storage(navi),
                   given(d128, square(1, 2, 300), Layout::padded, bf16)),
          backward("slices", navi, given({576, 512}, square(1, 2, 300))),
          backward("cut", cpu, given(d64, {1, 4, 1, 700, 900}), false, limited(40'000'000))})
        check_faults(s);
}

// Each kind of module, loop, move of P and feature is in some of these plans.
TEST_CASE("faults: forward on matrix units") {
    const DeviceCaps h200 = matrix_device("nvidia_h200"), known = probed(h200),
                     navi = matrix_device("amd_navi31");
    const Options matrix = kernel("matrix");
    const Shape shape{2, 8, 2, 300, 3000, true};
    const VkattnProblem plain = given(d128, {2, 4, 2, 700, 900}, f16);
    for (const Sound& s :
         {forward("registers", known, given(d64, shape, f16), matrix),
          forward("converted", h200, with_softcap(given(d128, shape, bf16)), matrix),
          forward("rounded", navi, given(d128, shape, f16), kernel("matrix_khr")),
          forward("of float32", known, given({111, 59}, shape, f32), rounded(matrix)),
          forward("chunks, slices", navi, given({576, 512}, shape, f16), matrix),
          forward("bias", known, masked(plain, VKATTN_MASK_FLOAT, MaskShape::all_batches), matrix),
          forward("lengths, offsets, mask", h200,
                  with_lengths(masked(plain, VKATTN_MASK_BOOL, MaskShape::whole)), matrix),
          forward("parts", known, given(d64, shape, f16), in_parts(matrix)),
          forward("cut", known, given(d64, {2, 16, 16, 2048, 2048}, bf16),
                  limited(2'000'000'000, 0, "matrix")),
          forward("invariant", h200, given({72, 72}, shape, f16), invariant(matrix)),
          forward("packed", known, given(d64, {2, 16, 2, 9, 2048}, f16), matrix),
          forward("decoded first", known, with_types(given(d64, shape, Layout::contiguous, f16)), matrix),
          forward("decoded while staged", known,
                  with_types(given(d64, {2, 8, 2, 200, 3000}, Layout::contiguous, f16)), matrix)})
        // Head dims that these limit are the same for more than one number.
        check_faults(s, true, {"q_held", "chunk", "slice"});
}

TEST_CASE("faults: backward on matrix units") {
    const DeviceCaps h200 = probed(matrix_device("nvidia_h200"));
    const Options matrix = kernel("matrix");
    const Shape shape{2, 8, 2, 300, 700, true};
    for (const Sound& s :
         {backward("registers", h200, given(d64, shape, f16), true, matrix),
          backward("gradient of the mask", h200,
                   masked(given(d64, {2, 4, 2, 300, 512}, f16), VKATTN_MASK_FLOAT, MaskShape::all_batches),
                   true, matrix),
          backward("pairs", h200, given({256, 256}, shape, f16), true, matrix),
          backward("turned", probed_turned(matrix_device("amd_navi31"), true), given(d128, shape, f16), true,
                   matrix),
          backward("rounded", matrix_device("nvk_ampere"), given(d64, shape, f32), true, rounded(matrix)),
          backward("cut", h200, given(d64, {1, 4, 1, 700, 900}, f16), true, limited(60'000'000, 0, "matrix")),
          backward("spilled in strips of heads", h200,
                   masked(given(d128, {2, 4, 2, 300, 500}, f16), VKATTN_MASK_BOOL, MaskShape::shared), true,
                   spilling(2'000'000)),
          backward("spilled in strips of steps", h200, given(d128, {1, 8, 2, 2100, 700}, bf16), true,
                   spilling(9'000'000)),
          backward("gradient of the mask, spilled in strips of heads", h200,
                   masked(given(d128, {2, 4, 2, 300, 512}, f16), VKATTN_MASK_FLOAT, MaskShape::all_heads),
                   true, spilling(2'000'000)),
          backward("gradient of the mask, spilled in strips of steps", h200,
                   masked(given(d128, {1, 4, 4, 2100, 700}, bf16), VKATTN_MASK_FLOAT, MaskShape::whole), true,
                   spilling(5'000'000))})
        check_faults(s, true);
}

TEST_CASE("faults: a combine") {
    VkattnCombine c = core::default_combine();
    c.num_parts = 5;
    c.batch = 2;
    c.num_heads = 3;
    c.seqlen_q = 300;
    c.head_dim_v = 64;
    c.dtype = c.parts_dtype = f16;
    const auto resolved_combine = core::resolve(c);
    REQUIRE(resolved_combine);
    check_faults({"combine", profile("nvidia_h200"), {}, {}, {}, *resolved_combine});
}
