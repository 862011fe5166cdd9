// The sweep: all kernels on every device, in every state that the planner can meet it in, crossed with head dims,
// shapes, layouts, alignments, storage types and features, forward and backward. Each plan passes every check and is
// the same when it is made again; each refusal has a reason.
#include <doctest/doctest.h>

#include <optional>
#include <random>

#include <fmt/format.h>

#include "plan_flaws.hpp"
#include "plan_reading.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Backward;

namespace {

constexpr auto f32 = VKATTN_DTYPE_FLOAT32, f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16;

// Devices without matrix units, those with them in each state that a probe can leave them in, and others as if they had
// 16-bit dot products of both types. `kernels`: those that are asked for, in turn.
struct Device {
    std::string name;
    DeviceCaps caps;
    std::vector<const char*> kernels;
};

const std::vector<Device>& all_devices() {
    static const std::vector<Device> devices = [] {
        const std::vector<const char*> portable{"auto", "tiles", "rows", "materialized"},
            dot{"tiles_dot", "rows_dot"}, of_units{"matrix", "auto", "matrix_khr"};
        DeviceCaps few = smallest_device();
        few.max_workgroup_count = {7, 3, 5};
        few.max_invocations = 1024;  // more than a workgroup of one dimension may have
        std::vector<Device> all{{"few workgroups", few, {"auto", "materialized"}}};
        for (const auto& [name, caps] : usable_devices()) {
            all.push_back({name, caps, portable});
            Device& with_dots = all.emplace_back(name + ", dot products", caps, dot);
            with_dots.caps.storage_16bit = with_dots.caps.dot_float16 = with_dots.caps.dot_bfloat16 = true;
        }
        for (const auto& [name, caps] : matrix_devices()) {
            std::vector<const char*> matrix = of_units;
            if (name == "nvidia_h200" || name == "lavapipe")
                matrix.push_back("matrix_rows");  // it has rows there
            all.push_back({name + ", unknown layout", caps, matrix});
            all.push_back({name + ", known layout", probed(caps), matrix});
            all.push_back({name + ", another left operand", probed(caps, false), matrix});
            all.push_back({name + ", as RDNA4", probed_turned(caps, false), matrix});
            all.push_back({name + ", as RDNA3", probed_turned(caps, true), matrix});
            Device& other = all.emplace_back(name + ", conversions the other way", caps, matrix);
            other.caps.matrix_conversions = !other.caps.matrix_conversions;
        }
        return all;
    }();
    return devices;
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
    return std::ranges::find(names, name) != names.end();
}

// Why the forward of the baseline cannot take this problem, as words that its message must hold; "" if it must.
std::string baseline_obstacle(const DeviceCaps& caps, const Problem& p) {
    if (p.empty_output()) return "";
    if (matrix_bytes(p) > std::min(uint64_t{1} << 30, caps.max_buffer_bytes)) return "bytes of scratch";
    const auto by_tiles = make_plan(caps, p, kernel("tiles"));
    if (!by_tiles) return "grid";  // of few workgroups
    const core::Tiles& tiles = by_tiles->tiles;
    const bool fits = p.seqlen_kv <= uint64_t{tiles.tile_kv} * caps.max_workgroup_count[2] &&
                      p.seqlen_q <= uint64_t{tiles.tile_q} * caps.max_workgroup_count[1];
    return fits ? "" : "grid";
}

// What a refusal must say; "" where there is no reason for one.
std::string reason_of(const DeviceCaps& caps, const Problem& p, const Backward* b, const Options& o,
                      const core::Failure& why) {
    const auto says = [&](const char* text) { return why.message.find(text) != std::string::npos; };
    if (o.batch_invariant && why.field == "options.batch_invariant") return "row";
    if (b != nullptr && says("rows see one key at most")) return "one key at most";
    const auto first = [&](std::initializer_list<const char*> reasons) {
        const auto found = std::ranges::find_if(reasons, says);
        return found != reasons.end() ? *found : "";
    };
    // Grids of few workgroups.
    if (caps.max_workgroup_count[1] == 3 && (says(" dispatches") || says("grid holds"))) return "grid";
    if (o.max_dispatch_flops != 0 && why.field == "options.max_dispatch_flops") return "limit";
    const bool parts = o.num_splits > 1 || o.max_dispatch_flops != 0 || o.batch_invariant;
    const double statistics = b != nullptr ? 16.0 * p.batch * p.num_heads_q * p.seqlen_q : 0;
    if ((parts || statistics + 1024 > double(caps.max_buffer_bytes)) && says("bytes of scratch"))
        return "scratch";
    if (o.kernel == "materialized") {
        if (why.field == "options.kernel") return first({"the baseline has no "});
        return b != nullptr ? first({"bytes of scratch", "grid", "too many dispatches"})
                            : baseline_obstacle(caps, p);
    }
    const bool has_many_rows = uint64_t{p.seqlen_q} * p.group_size > 4;
    if (o.kernel == "matrix_rows")
        return first(
            {"registers for at most", "has no shape for", has_many_rows ? "query rows here" : "grid"});
    if (o.kernel == "rows" && has_many_rows) return first({"query rows here", "too few registers"});
    if (o.kernel == "rows") return p.head_dim_v > 128 ? "too few registers" : "no tile shape fits";
    if (o.kernel.ends_with("_dot"))
        return first({"query rows here", "no tile shape fits", "too few registers"});
    const bool backward_matrix = b != nullptr && (o.kernel.starts_with("matrix") || o.precision != 0);
    if (o.kernel.starts_with("matrix") || o.precision != 0) {
        const auto operands = o.precision == VKATTN_PRECISION_FLOAT16 ? f16
                              : o.precision != 0                      ? bf16
                                                                      : p.dtype;
        if (std::ranges::none_of(caps.matrices, [&](const auto& s) { return s.dtype == operands; }))
            return "the matrix unit has no shape for";
        if (caps.type == core::DeviceType::cpu && says("lie 2^31 bytes apart")) return "lie 2^31 bytes apart";
    }
    return backward_matrix ? first({" "}) : "";  // its rows are for some devices and head dims only
}

// Numbers that go with each other in no order, the same in every run.
class Draws {
  public:
    size_t below(size_t n) { return engine_() % n; }
    bool one_in(size_t n) { return below(n) == 0; }
    template <class All>
    const auto& of(const All& all) {
        return all[below(std::size(all))];
    }

  private:
    std::mt19937_64 engine_{46};
};

// Gives operands types of their own. Keys and values of a forward get types of blocks if their rows are whole blocks.
void give_types(VkattnProblem& p, Draws& draws, bool backward) {
    constexpr VkattnStrides contiguous{VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS, VKATTN_CONTIGUOUS};
    const auto any = [&](bool may_have_blocks) {
        const bool has_blocks = may_have_blocks && !backward && draws.one_in(2);
        return static_cast<VkattnDtype>(has_blocks ? VKATTN_DTYPE_Q8_0 + draws.below(9) : draws.below(3));
    };
    p.key_dtype = any(p.head_dim_qk % 32 == 0);
    p.value_dtype = any(p.head_dim_v % 32 == 0);
    const uint64_t kinds = p.seqlen_kv > 1u << 29 ? 3 : 4;  // so many keys have no scale each
    const auto scales = [&](VkattnDtype dtype) {
        return static_cast<VkattnScales>(core::has_single_bytes(dtype) ? draws.below(kinds) : 0);
    };
    p.key_scales = scales(p.key_dtype);
    p.value_scales = scales(p.value_dtype);
    p.value_in_key = !backward && p.head_dim_v <= p.head_dim_qk && draws.one_in(4) ? 1 : 0;
    p.out_dtype = any(false);
    p.mask_dtype = any(false);
    p.alignment_bytes = 0;
    p.key_strides = p.value_strides = p.out_strides = contiguous;
}

class Sweep {
  public:
    // Plans the problem's forward or its backward with the kernel that the options name.
    void add(const Device& device, const VkattnProblem& given, Options o, bool backward,
             const std::string& where) {
        const Problem p = resolved(given);
        if (backward && (o.kernel == "rows" || o.kernel == "matrix_rows")) o.kernel = "auto";
        if (backward && o.kernel == "rows_dot") o.kernel = "tiles_dot";
        if (backward && (o.num_splits > 1 || is_long(p, o))) return;
        if (is_heavy(p) && !draws.one_in(backward ? 64 : 16)) return;
        const bool may_round = !backward || !p.has_mixed_types();
        if (!device.caps.matrices.empty() && p.dtype == f32 && may_round)
            o.precision = draws.one_in(4) ? VKATTN_PRECISION_BFLOAT16 : VKATTN_PRECISION_FLOAT16;
        std::optional<Backward> b;
        if (backward) b = make_backward(p, draws.one_in(2));
        flaws_.add(flaw(device.caps, p, b ? &*b : nullptr, o),
                   fmt::format("{}, {}, {}", device.name, o.kernel, where), p);
    }
    // At least so many plans of this kernel, "backward tiles" or "tiles", were checked.
    void check_planned(const char* name, size_t least) {
        INFO(std::string(name));
        CHECK_GT(planned_by_[name], least);
    }
    size_t cut() const { return cut_; }
    Draws draws;

  private:
    // Loops of so many tiles, or so low a limit, make tens of thousands of dispatches, which differ little.
    bool is_long(const Problem& p, const Options& o) {
        const double pairs = double(p.batch) * p.num_heads_q * p.seqlen_q * p.seqlen_kv;
        const bool many = o.max_dispatch_flops != 0 &&
                          pairs * (p.head_dim_qk + p.head_dim_v) * 4 > 1e3 * double(o.max_dispatch_flops);
        return (many && !draws.one_in(64)) || (p.seqlen_kv > 1u << 26 && !draws.one_in(16));
    }
    std::string flaw(const DeviceCaps& caps, const Problem& p, const Backward* b, const Options& o) {
        const auto make = [&] { return b != nullptr ? make_plan(caps, p, *b, o) : make_plan(caps, p, o); };
        const auto plan = make();
        if (!plan) {
            const core::Failure& why = plan.failure();
            const std::string reason = reason_of(caps, p, b, o, why);
            const bool right = why.status == VKATTN_UNSUPPORTED && !reason.empty();
            const bool said = is_one_of(reason, {"limit", "scratch", "row", "grid"}) ||
                              why.message.find(reason) != std::string::npos;
            return right && said ? "" : fmt::format("refused: {} {}", why.field, why.message);
        }
        planned_by_[(b != nullptr ? "backward " : "") + plan->kernel]++;
        cut_ += is_cut(*plan);
        if (!o.kernel.empty() && o.kernel != "auto" && plan->kernel != o.kernel) return "got " + plan->kernel;
        if (o.kernel == "materialized" && b == nullptr && !baseline_obstacle(caps, p).empty())
            return "fits, but should not";
        if (plan->dispatches.size() > 5000 && b != nullptr) return "";  // long to check
        auto found = b != nullptr ? flaw_of(caps, p, *b, *plan, o) : flaw_of(caps, p, *plan, o);
        if (!found.empty() || plan->dispatches.size() > 1000) return found;
        const auto again = make();
        return again && difference(*plan, *again).empty() ? "" : "not deterministic";
    }

    Flaws flaws_;
    std::map<std::string, size_t> planned_by_;
    size_t cut_ = 0;
};

constexpr Layout layouts[] = {Layout::contiguous, Layout::bshd, Layout::padded, Layout::wide,
                              Layout::broadcast};

uint32_t alignment_of(VkattnDtype dtype, size_t turn) {
    return std::max(2u << turn % 4, dtype == f32 ? 4u : 2u);
}

// Storage types that a kernel takes.
std::vector<VkattnDtype> dtypes_of(const std::string& kernel_name) {
    if (kernel_name == "materialized") return {f32};
    if (kernel_name.ends_with("_dot")) return {f16, bf16};
    return {f32, f16, bf16};
}

}  // namespace

TEST_CASE("sweep: every device, head dim, shape, layout and storage type") {
    Sweep sweep;
    for (const Device& device : all_devices())
        for (const HeadDims dims : all_head_dims())
            for (const Shape& shape : all_shapes())
                for (const bool backward : {false, true}) {
                    const Options o = kernel(sweep.draws.of(device.kernels));
                    const VkattnDtype dtype = sweep.draws.of(dtypes_of(o.kernel));
                    const Layout layout = sweep.draws.of(layouts);
                    const uint32_t alignment = alignment_of(dtype, sweep.draws.below(4));
                    sweep.add(device, make_problem(dims, shape, layout, alignment, dtype), o, backward,
                              name_of(layout));
                }
    for (const char* name :
         {"tiles", "backward tiles", "rows", "materialized", "backward materialized", "tiles_dot",
          "backward tiles_dot", "rows_dot", "matrix", "backward matrix", "matrix_khr", "backward matrix_khr"})
        sweep.check_planned(name, 1000);
}

TEST_CASE("sweep: every device, feature and shape") {
    Sweep sweep;
    for (const Device& device : all_devices())
        for (const Features& f : all_features())
            for (const Shape& shape : all_shapes())
                for (const bool backward : {false, true}) {
                    if (f.query_offsets && shape.align == VKATTN_ALIGN_OFFSET) continue;
                    const Layout layout = sweep.draws.of(layouts);
                    const uint32_t alignment = alignment_of(f.dtype, sweep.draws.below(4));
                    VkattnProblem given =
                        make_problem(sweep.draws.of(all_head_dims()), shape, layout, alignment, f.dtype);
                    set_features(given, f);
                    given.softcap = sweep.draws.one_in(7) ? 30.0f : 0.0f;
                    if (sweep.draws.one_in(7))
                        given.slopes =
                            sweep.draws.one_in(2) ? VKATTN_SLOPES_PER_HEAD : VKATTN_SLOPES_PER_BATCH;
                    given.sinks = sweep.draws.one_in(7);
                    given.block_map = sweep.draws.one_in(5) && shape.seqlen_kv < 1 << 17;
                    given.block_map_batches = sweep.draws.one_in(2) ? 1 : given.batch;
                    given.block_map_heads = sweep.draws.one_in(2) ? 1 : given.num_heads_q;
                    if (given.mask == VKATTN_MASK_FLOAT && sweep.draws.one_in(3))
                        given.slopes_apply = VKATTN_SLOPES_APPLY_MASK;
                    Options o = options_of(f);
                    o.kernel = sweep.draws.of(device.kernels);
                    if (o.kernel.ends_with("_dot") && f.dtype == f32) continue;
                    if (sweep.draws.one_in(5)) {
                        give_types(given, sweep.draws, backward);
                        if (f.dtype != f32 || backward)
                            o.kernel = "auto";  // float32 is rounded where the device has matrices
                    }
                    // A step or a few of a backward's loop, so that it is cut.
                    if (backward && sweep.draws.one_in(5)) o.max_dispatch_flops = 100'000'000;
                    sweep.add(device, given, o, backward, fmt::format("{}, {}", f.name, name_of(layout)));
                }
    for (const char* name : {"tiles", "backward tiles", "rows", "tiles_dot", "backward tiles_dot", "rows_dot",
                             "matrix", "backward matrix", "matrix_khr", "backward matrix_khr"})
        sweep.check_planned(name, 1000);
    sweep.check_planned("matrix_rows", 300);
    CHECK_GT(sweep.cut(), 1000);
}

namespace {

// Callers may ask for these numbers instead of the table's.
const char* const tunings[] = {"chunk=32,running=1",
                               "chunk=16,slice=64,running=1",
                               "slice=64",
                               "slice=40,q_held=0",
                               "running=1",
                               "running=1,q_held=16",
                               "halves=2",
                               "halves=1",
                               "move=0",
                               "move=1",
                               "move=2",
                               "move=3,halves=1",
                               "move=3,halves=1,running=1",
                               "subgroups=1",
                               "subgroups=2,row_blocks=3",
                               "tile_kv=16,halves=1",
                               "tile_kv=96",
                               "q_held=0",
                               "q_held=33",
                               "l2_group_kib=1,min_group_workgroups=7",
                               "l2_group_kib=0",
                               "rolled=1"};

}  // namespace

TEST_CASE("sweep: numbers that a caller asks of matrix units make a sound plan or none") {
    Flaws flaws;
    size_t turn = 0;
    std::map<std::string, size_t> with_plan;
    for (const Device& device : all_devices()) {
        if (device.caps.matrices.empty()) continue;
        for (const char* text : tunings)
            for (const HeadDims dims : {d64, d128, HeadDims{111, 59}, HeadDims{576, 512}}) {
                turn++;
                const auto dtype = turn % 5 == 0 ? f32 : f16;
                VkattnProblem given = make_problem(dims, {2, 8, 2, 300, 3000, turn % 2 == 0},
                                                   Layout::contiguous, alignment_of(dtype, turn), dtype);
                if (turn % 3 == 0) set_mask(given, VKATTN_MASK_FLOAT, MaskShape::all_batches);
                const Problem p = resolved(given);
                Options o = tuning(text, turn % 7 == 0 ? "matrix_khr" : "matrix");
                o.num_splits = turn % 11 == 0 ? 3 : 0;
                if (dtype == f32) o.precision = VKATTN_PRECISION_FLOAT16;
                const auto plan = make_plan(device.caps, p, o);
                const std::string where = fmt::format("{}, {}, {}", device.name, o.kernel, text);
                with_plan[text] += static_cast<bool>(plan);
                if (plan)
                    flaws.add(flaw_of(device.caps, p, *plan, o), where, p);
                else
                    flaws.add(plan.failure().field == "options.tuning" ? "" : plan.failure().message, where,
                              p);
            }
    }
    for (const char* text : tunings) {
        INFO(text);
        CHECK_GT(with_plan[text], 0);
    }
}
