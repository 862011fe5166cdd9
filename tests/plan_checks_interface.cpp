// What a pipeline is told of the problem: its module, constants and push constants, by the names of their interface.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "plan_arrays.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Pipeline;
using core::Problem;
using core::Region;

uint32_t type_constant(VkattnDtype dtype) {
    switch (dtype) {
        case VKATTN_DTYPE_FLOAT16:
            return TYPE_FLOAT16;
        case VKATTN_DTYPE_BFLOAT16:
            return TYPE_BFLOAT16;
        case VKATTN_DTYPE_Q8_0:
            return TYPE_Q8_0;
        case VKATTN_DTYPE_Q4_0:
            return TYPE_Q4_0;
        case VKATTN_DTYPE_Q4_1:
            return TYPE_Q4_1;
        case VKATTN_DTYPE_Q5_0:
            return TYPE_Q5_0;
        case VKATTN_DTYPE_Q5_1:
            return TYPE_Q5_1;
        case VKATTN_DTYPE_IQ4_NL:
            return TYPE_IQ4_NL;
        case VKATTN_DTYPE_INT8:
            return TYPE_INT8;
        case VKATTN_DTYPE_FLOAT8_E4M3:
            return TYPE_E4M3;
        case VKATTN_DTYPE_FLOAT8_E5M2:
            return TYPE_E5M2;
        default:
            return TYPE_FLOAT32;
    }
}

// Whether the kernel has a module of this part.
bool kernel_has_part(const Pipeline& pipeline, std::string_view part) {
    return std::ranges::any_of(core::built_modules(), [&](const core::Module& module) {
        return module.kernel == pipeline.module.kernel && has_part(module, part);
    });
}

// A float mask of 16 bits in narrow rows is fetched ahead by the loop whose offsets are a tile's own, unless a term
// changes every score.
bool fetches_bias(const Given& g, const Pipeline& pipeline, bool running) {
    return g.p.mask == VKATTN_MASK_FLOAT && g.p.block_map == 0 && g.p.dtype != VKATTN_DTYPE_FLOAT32 &&
           !has_own_types(g.p) && !terms_change_every_score(g.p) && !running &&
           constant(pipeline, "p_move") == MOVE_FRAGMENT && constant(pipeline, "far_rows") == 0;
}

// Macros of a module on matrix units must be those that the numbers need.
std::string macros_flaw(const Given& g, const Pipeline& pipeline) {
    const auto& tuning = g.tuning();
    const auto number = [&](const char* name) { return tuning.count(name) != 0 ? tuning.at(name) : 0; };
    const uint32_t move = constant(pipeline, "p_move");
    const std::pair<const char*, bool> parts[] = {
        {"_turned", number("turned") != 0},
        {"_running", number("running") != 0},
        {"_nv2", move == MOVE_CONVERT},
        {"_rounded", move == MOVE_SHARED},
        {"_bias", fetches_bias(g, pipeline, number("running") != 0)},
        {"_of_f32", g.p.dtype == VKATTN_DTYPE_FLOAT32 || has_own_types(g.p)},
        {g.plan.operands == VKATTN_DTYPE_FLOAT16 ? "_f16" : "_bf16", true},
    };
    for (const auto& [part, wanted] : parts)
        if (kernel_has_part(pipeline, part) && has_part(pipeline.module, part) != wanted)
            return fmt::format("{}: a module {}{}", name_of(pipeline), wanted ? "without " : "with ", part);
    return "";
}

// What tells of the problem in the same way in all kernels.
Values problem_constants(const Given& g, const Pipeline& pipeline) {
    const Problem& p = g.p;
    const uint32_t element = bytes_of(p.dtype),
                   wide = p.alignment_bytes >= 4 * element ? 4 * element : element;
    const bool own = has_own_types(p);  // loads are of four elements or one, by each type
    const core::Patch *query = find_patch(pipeline, "query"), *value = find_patch(pipeline, "value");
    return {{"head_dim_qk", query != nullptr ? head_dim_of(p, query->region) : p.head_dim_qk},
            {"head_dim_v",
             value != nullptr && p.value_in_key == 0 ? head_dim_of(p, value->region) : p.head_dim_v},
            {"load_bytes", own ? std::min(p.alignment_bytes, 16u)
                           : on_matrices(pipeline) && p.alignment_bytes >= 16 ? 16
                                                                              : wide},
            {"has_arguments", g.backward != nullptr || needs_arguments(p)},
            {"has_softcap", p.softcap > 0},
            {"mask_kind", p.mask == VKATTN_MASK_BOOL    ? MASK_BOOL
                          : p.mask == VKATTN_MASK_FLOAT ? MASK_FLOAT
                                                        : MASK_NONE},
            {"slopes", slopes_kind(p)},
#define ARRAY(name, NAME, present, type, extents, asked, ask, option, shape, text) {"has_" #name, asked},
#include "interface/arrays.def"
            {"out_type", type_constant(p.out_dtype)},
            {"mask_type", type_constant(p.mask_dtype)},
            {"query_type", own ? type_constant(p.dtype) : TYPE_FLOAT32},
            {"key_type", own ? type_constant(p.key_dtype) : TYPE_FLOAT32},
            {"value_type", own ? type_constant(p.value_dtype) : TYPE_FLOAT32},
            {"key_scales", own ? static_cast<uint32_t>(p.key_scales) : 0},
            {"value_scales", own ? static_cast<uint32_t>(p.value_scales) : 0},
            {"has_dlse", g.backward != nullptr && g.backward->dlse != 0},
            {"tile_q", g.plan.tiles.tile_q},  // of the classes
            {"tile_kv", g.plan.tiles.tile_kv},
            {"pool_vec4", g.plan.tiles.shared_bytes / 16},
            {"is_split", 0},
            {"is_resumed", 0},
            {"slices", 1},
            {"stages", 1}};
}

// The largest power of two up to 16 that every row of the mask begins at a multiple of, in bytes; 0 without a mask.
uint32_t unit_of_mask_rows(const Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return 0;
    const uint64_t element = p.mask == VKATTN_MASK_BOOL ? 1 : bytes_of(p.mask_dtype);
    uint64_t unit = 16;
    for (const uint64_t stride : mask_strides(p))
        while (stride * element % unit != 0) unit /= 2;
    return static_cast<uint32_t>(unit);
}

// Constants that other checks judge: choices within bounds, the matrix unit's shape, shared memory of passes.
void take_over(const Pipeline& pipeline, Values& values, std::initializer_list<std::string_view> names) {
    for (const std::string_view name : names)
        if (has_constant(pipeline, name)) values[name] = constant(pipeline, name);
}

// True if no tile of the pipelines that follow links has an element that is told apart from the others.
bool has_whole_blocks(const Given& g) {
    const auto is_whole = [&](const Pipeline& pipeline) {
        const Tile tile = tile_of(pipeline);
        return constant(pipeline, "packed_heads") == 0 && constant(pipeline, "isolates_rows") == 0 &&
               g.p.block_rows % tile.q == 0 && g.p.block_keys % tile.kv == 0;
    };
    return g.p.mask == VKATTN_MASK_NONE && g.p.slopes == VKATTN_SLOPES_NONE &&
           std::ranges::all_of(g.plan.pipelines, [&](const Pipeline& x) {
               return links_of(g.plan, x) == nullptr || kind_of(x) == Kind::spilled || is_whole(x);
           });
}

// The passes of a plan that spills dS know each other's tiles.
void add_constants_of_spill(const Given& g, const Pipeline& pipeline, Values& values) {
    const Pipeline* const reader = reader_of(g.plan);
    values["tiles"] = reader == nullptr                       ? TILES_ALL
                      : writes(pipeline, Region::tile_states) ? TILE_ODD
                                                              : TILE_NONFINITE;
    const bool of_bias = kind_of(pipeline) == Kind::spilled_bias;
    const bool spills = reader != nullptr && (of_bias || writes(pipeline, Region::dkey));
    values["spilled_rows"] = spills ? static_cast<uint32_t>(tile_of(*reader).q) : 0;
    for (const Pipeline& other : g.plan.pipelines) {
        const Tile tile = tile_of(other);
        if (kind_of(other) == Kind::dquery) values["state_rows"] = static_cast<uint32_t>(tile.q);
        if (kind_of(other) != Kind::dkey_dvalue) continue;
        values["step_rows"] = static_cast<uint32_t>(tile.q);
        values["step_keys"] = static_cast<uint32_t>(tile.kv);
        if (of_bias && writes(other, Region::spill)) take_over(other, values, {"matrix_m", "matrix_k"});
    }
}

Values expected_constants(const Given& g, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::arguments) return {{"threads", 1}};
    if (kind == Kind::links)
        return {{"threads", std::min({256u, g.caps.max_invocations, g.caps.max_workgroup_size[0]})}};
    Values values = problem_constants(g, pipeline);
    take_over(pipeline, values, {"far_rows", "packed_heads"});
    const auto& tuning = g.tuning();
    if (kind == Kind::dsinks) {
        take_over(pipeline, values, {"threads"});
        return values;
    }
    if (kind == Kind::delta) {
        const bool rounds = g.p.dtype == VKATTN_DTYPE_FLOAT32 && g.plan.operands != VKATTN_DTYPE_FLOAT32;
        values["dout_type"] = rounds ? type_constant(g.plan.operands) : TYPE_FLOAT32;
        take_over(pipeline, values, {"threads", "lanes"});
        return values;
    }
    // Tuning rows have no numbers of a pass whose pipeline is none of theirs.
    const bool own_row = pipeline.of_tuning_row || !walks(kind);
    for (const std::string_view c : core::info_of(pipeline.module.kernel).constants)
        if (const uint32_t* number = number_of(tuning, pipeline, c); number != nullptr && own_row)
            values[c] = *number;
    if (kind == Kind::forward) values["is_split"] = parts_of(g).span != 0;
    if (kind == Kind::dquery || kind == Kind::dkey_dvalue) values["is_resumed"] = is_cut(pipeline);
    if (!own_row)
        take_over(pipeline, values,
                  {"threads", "lanes", "rows", "cols", "chunk", "p_blocks", "v_keys", "prefetch", "unroll",
                   "pool_vec4"});
    if (kind == Kind::classes && tuning.count("threads") == 0) take_over(pipeline, values, {"threads"});
    if (kind == Kind::spilled_bias) {
        values["threads"] = std::min({256u, g.caps.max_invocations, g.caps.max_workgroup_size[0]});
        add_constants_of_spill(g, pipeline, values);
    }
    if (!on_matrices(pipeline)) return values;
    take_over(pipeline, values,
              {"subgroup_size", "matrix_m", "matrix_n", "matrix_k", "element_layout", "p_exchanged",
               "gradients", "pool_vec4"});
    values["threads"] = *number_of(tuning, pipeline, "subgroups") * constant(pipeline, "subgroup_size");
    values["p_move"] = tuning.at("move");
    values["lane_by_index"] =
        pipeline.module.has(core::macros::ROLLED) ||
        (g.caps.driver_id != core::driver_nvidia && g.caps.type != core::DeviceType::cpu);
    values["mask_row_bytes"] = unit_of_mask_rows(g.p);
    const bool linked = links_of(g.plan, pipeline) != nullptr;
    values["has_links"] = linked;
    values["whole_blocks"] = linked && has_whole_blocks(g);
    if (kind == Kind::forward) take_over(pipeline, values, {"chunk", "q_held_steps", "slices"});
    add_constants_of_spill(g, pipeline, values);
    // Products for dbias are never turned, so that its pass is told another way of P, which it does not move anyway.
    if (kind == Kind::dbias && tuning.at("turned") != 0)
        values["p_move"] = constant(pipeline, "p_move") == MOVE_SHARED ? MOVE_SHARED : MOVE_SHARED_FLOAT;
    if (kind == Kind::dquery) {
        const auto k = static_cast<uint32_t>(divisor(pipeline, "matrix_k"));
        values["v_staged_steps"] =
            std::min(tuning.at("q_v_staged") / k, static_cast<uint32_t>(tiles_of(g.p.head_dim_v, k)) - 1);
    }
    return values;
}

// Rows of a workgroup, as far as 2^31 bytes apart.
bool far_rows(const VkattnStrides& s, uint64_t rows, uint64_t bytes) {
    return s.seq > (uint64_t{1} << 31) / bytes || (rows - 1) * s.seq * bytes > uint64_t{1} << 31;
}

std::string combine_constants_flaw(const Given& g, const Pipeline& pipeline) {
    const core::Combine c = combine_of(g);
    const bool own_parts = g.combine == nullptr;
    const uint32_t bytes = bytes_of(c.dtype), part_bytes = bytes_of(c.parts_dtype);
    const auto invocations = divisor(pipeline, "lanes") * divisor(pipeline, "teams");  // of a row
    const uint32_t threads = constant(pipeline, "threads"), apart = constant(pipeline, "far_rows");
    if (threads == 0 || threads % invocations != 0)
        return fmt::format("combine: {} invocations of a row, {} in all", invocations, threads);
    if ((!own_parts || g.options.batch_invariant) && constant(pipeline, "teams") != 1)
        return "combine: bits depend on the number of parts";
    const uint64_t rows = threads / invocations;
    // Each invocation of a row reads the statistics, 8 bytes a row at most, of a part of its own.
    const uint64_t statistics = uint64_t{c.batch} * c.num_heads * c.seqlen_q * bytes_of_statistics(g) *
                                std::min<uint64_t>(invocations, c.num_parts);
    const auto far = [&](uint64_t slack, uint64_t limit) {
        return far_rows(c.parts_strides, rows + slack, part_bytes) ||
               far_rows(c.out_strides, rows + slack, bytes) || statistics > limit;
    };
    if (apart > 1 || (apart == 0 && far(0, uint64_t{1} << 31))) return "combine: far_rows is needed";
    if (apart != 0 && !far(2, uint64_t{1} << 30)) return "combine: far_rows is needless";
    // Four elements of parts and of out at a time, or one.
    const uint32_t widest = std::max(bytes, part_bytes);
    Values values{{"step_parts", g.caps.type == core::DeviceType::cpu ? 1u : 4u},
                  {"head_dim_v", c.head_dim_v},
                  {"load_bytes", c.alignment_bytes >= 4 * widest ? 4 * widest : bytes},
                  {"parts_are_float32", part_bytes == 4},
                  {"parts_have_max_sum", own_parts},
                  {"parts_are_natural", !own_parts || g.p.mask == VKATTN_MASK_FLOAT},
                  {"parts_have_shift", own_parts && slopes_kind(g.p) == SLOPES_DISTANCE},
                  {"out_type", type_constant(c.dtype)}};
    take_over(pipeline, values, {"threads", "lanes", "teams", "far_rows"});
    return constants_flaw(pipeline, values);
}

// Constants that nonfinite_flaw judges.
constexpr std::string_view of_nonfinite[] = {"exp2_loses_nan", "isolates_rows", "holds_blocks"};

template <class All, class T>
bool is_one_of(const All& names, const T& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The part of its name that a kernel must have for what it finds, and none of the others.
std::string kernel_flaw(const Pipeline& pipeline) {
    const std::pair<const char*, Kind> parts[] = {
        {"_query", Kind::dquery},    {"_key_value", Kind::dkey_dvalue}, {"_mask", Kind::dbias},
        {"_spilled", Kind::spilled}, {"_sinks", Kind::dsinks},          {"_transposed", Kind::transposed}};
    // One kernel finds the gradient of the mask from what is spilled, and has both parts.
    const auto finds = [&, own = kind_of(pipeline)](Kind kind) {
        return own == Kind::spilled_bias ? kind == Kind::dbias || kind == Kind::spilled : own == kind;
    };
    for (const auto& [part, kind] : parts)
        if (has_part(pipeline.module, part) != finds(kind)) return "a kernel that finds something else";
    return "";
}

}  // namespace

std::string module_flaw(const Given& g, const Pipeline& pipeline) {
    if (pipeline.module.variant != 0) return "a variant that nobody has added";
    if (kind_of(pipeline) == Kind::arguments) return "";
    if (auto flaw = kernel_flaw(pipeline); !flaw.empty()) return flaw;
    const char* const name = core::name_of(pipeline.module);
    if (*name == 0) return "a module that is not built";
    const bool mixed = pipeline.module.has(core::macros::MIXED), own = has_own_types(g.p);
    constexpr std::array multiplies = {Kind::forward, Kind::dquery, Kind::dkey_dvalue, Kind::dbias};
    if (mixed != (own && g.combine == nullptr && std::ranges::count(multiplies, kind_of(pipeline)) != 0))
        return fmt::format("{} where operands {} types of their own", name, mixed ? "have no" : "have");
    const VkattnDtype dtype = g.combine != nullptr                 ? g.combine->dtype
                              : kind_of(pipeline) == Kind::combine ? g.p.out_dtype
                              : kind_of(pipeline) == Kind::classes ? dtype_of_mask(g.p)
                              : kind_of(pipeline) == Kind::delta && own
                                  ? VKATTN_DTYPE_FLOAT16  // for out and a mask of any type
                                  : g.p.dtype;
    const bool half = mixed || dtype != VKATTN_DTYPE_FLOAT32, dot = needs(pipeline, core::NEED_DOT);
    if (kind_of(pipeline) == Kind::dsinks || kind_of(pipeline) == Kind::links)
        return "";  // they read no tensor
    if (!mixed && core::storage_of(pipeline.module) != dtype)
        return fmt::format("{} for {}", name, core::name_of(dtype));
    if (on_matrices(pipeline)) {
        if (!g.plan.kernel.starts_with("matrix") || g.caps.matrices.empty())
            return fmt::format("{} for {}", name, g.plan.kernel);
        if (auto flaw = macros_flaw(g, pipeline); !flaw.empty()) return flaw;
    } else if (needs(pipeline, core::NEED_16BIT_STORAGE) != (half && g.caps.storage_16bit)) {
        return fmt::format("{}, and 16-bit storage", name);
    }
    if (dot && !(dtype == VKATTN_DTYPE_FLOAT16 ? g.caps.dot_float16 : g.caps.dot_bfloat16))
        return fmt::format("{} needs 16-bit dot products", name);
    if (kernel_has_part(pipeline, "_dot") && dot != g.plan.kernel.ends_with("_dot"))
        return fmt::format("{} of {}", name, g.plan.kernel);
    const auto& tuning = g.tuning();
    const auto rolled = tuning.find("rolled");
    const bool own_row = pipeline.of_tuning_row || !walks(kind_of(pipeline));
    const bool for_cpus = pipeline.module.has(core::macros::ROLLED);
    const bool has_form = core::in_cpu_form(pipeline.module).has(core::macros::ROLLED);
    if (own_row && for_cpus != (rolled != tuning.end() && rolled->second != 0 && has_form))
        return fmt::format("{}: the form of another type of device", name);
    return "";
}

std::string constants_flaw(const Pipeline& pipeline, const Values& expected) {
    const auto constants = core::info_of(pipeline.module.kernel).constants;
    for (size_t i = 0; i < constants.size(); i++) {
        const std::string_view name = constants[i];
        if (is_one_of(of_nonfinite, name)) continue;
        const auto found = expected.find(name);
        if (found == expected.end())
            return fmt::format("constants of {}: nothing tells what {} must be", name_of(pipeline), name);
        if (pipeline.constants[i] != found->second)
            return fmt::format("constants of {}: {} is {}, not {}", name_of(pipeline), name,
                               pipeline.constants[i], found->second);
    }
    for (size_t i = constants.size(); i < pipeline.constants.size(); i++)
        if (pipeline.constants[i] != 0)
            return fmt::format("constants of {}: {} where there is none", name_of(pipeline),
                               pipeline.constants[i]);
    return "";
}

std::string constants_flaw(const Given& g, const Pipeline& pipeline) {
    if (kind_of(pipeline) == Kind::combine) return combine_constants_flaw(g, pipeline);
    return constants_flaw(pipeline, expected_constants(g, pipeline));
}

namespace {

// What is known of rows of a head: they all see the same keys, or all keys.
bool rows_see_alike(const Problem& p) {
    if (p.mask != VKATTN_MASK_NONE || p.block_map != 0) return false;
    if (p.seqlen_q <= 1) return true;
    if (p.dynamic_bounds) return p.bound_lo == INT32_MIN && p.bound_hi == INT32_MAX;
    const auto keys_of = [&](int64_t i) {
        const int64_t keys = p.seqlen_kv;
        return std::pair{std::clamp<int64_t>(i + p.bound_lo, 0, keys),
                         std::clamp<int64_t>(i + p.bound_hi + 1, 0, keys)};
    };
    return keys_of(0) == keys_of(int64_t{p.seqlen_q} - 1);
}
bool rows_see_all(const Problem& p) {
    if (!rows_see_alike(p)) return false;
    return p.seqlen_q <= 1 || p.dynamic_bounds ||
           (p.bound_lo <= 1 - int64_t{p.seqlen_q} && p.bound_hi >= int64_t{p.seqlen_kv} - 1);
}

// Why isolates_rows is wrong, or "".
const char* isolation_flaw(const Given& g, uint32_t isolates) {
    if (isolates > 1) return "not a boolean";
    if (isolates == 0)
        return g.options.batch_invariant && !rows_see_alike(g.p) ? "needed: NaN would spread" : "";
    if (!g.options.batch_invariant) return "needless: it is not asked for";
    return g.p.seqlen_kv != 0 && rows_see_all(g.p) ? "needless: rows see all keys" : "";
}

}  // namespace

// What kernels are told of numbers that are not finite, against the driver and the options.
std::string nonfinite_flaw(const Given& g, const Pipeline& pipeline) {
    const bool swiftshader = g.caps.driver_id == 10;
    const bool holds = g.caps.type == core::DeviceType::cpu
                           ? !swiftshader
                           : g.caps.vendor_id == 0x5143 && g.caps.driver_id == core::driver_turnip &&
                                 !g.caps.name.ends_with("660");
    for (const auto& [name, wanted] : {std::pair{of_nonfinite[0], swiftshader}, {of_nonfinite[2], holds}})
        if (has_constant(pipeline, name) && constant(pipeline, name) != wanted)
            return fmt::format("{}: {} is {}", name_of(pipeline), name, constant(pipeline, name));
    if (!has_constant(pipeline, of_nonfinite[1])) return "";
    const std::string why = isolation_flaw(g, constant(pipeline, of_nonfinite[1]));
    return why.empty() ? "" : fmt::format("{}: isolates_rows: {}", name_of(pipeline), why);
}

std::string words_flaw(const Pipeline& pipeline, const Words& expected) {
    std::array<uint32_t, core::max_push_bytes / 4> wanted{}, there{};
    std::memcpy(there.data(), pipeline.push.data(), sizeof there);
    for (const core::FieldInfo& field : core::info_of(pipeline.module.kernel).fields) {
        if (find_patch(pipeline, field.name) != nullptr || is_one_of(fields_of_cut, field.name)) continue;
        const auto found = expected.find(field.name);
        if (found == expected.end() && field.size_bytes == 8) continue;  // an address that is not given: 0
        if (found == expected.end() || 4 * found->second.size() != field.size_bytes)
            return fmt::format("push constants of {}: nothing tells what {} must be", name_of(pipeline),
                               field.name);
        std::copy(found->second.begin(), found->second.end(), wanted.begin() + field.offset_bytes / 4);
    }
    // A patch writes the first two words of its field.
    if (find_patch(pipeline, "operand_layout") != nullptr && expected.count("operand_layout") != 0)
        std::ranges::copy(expected.at("operand_layout"),
                          wanted.begin() + find_field(pipeline, "operand_layout")->offset_bytes / 4);
    for (size_t word = 0; word < there.size(); word++)
        if (there[word] != wanted[word])
            return fmt::format("push constants of {}: word {} is {}, not {}", name_of(pipeline), word,
                               there[word], wanted[word]);
    return "";
}

namespace {

// The float in a field if it comes close to what it must be, else what it must be.
uint32_t rounded_as(const Pipeline& pipeline, std::string_view name, double wanted) {
    auto given = static_cast<float>(wanted);
    if (find_field(pipeline, name) != nullptr) {
        const auto there = std::bit_cast<float>(words_in(pipeline, name)[0]);
        if (std::abs(there - wanted) <= 2e-7 * std::abs(wanted)) given = there;
        // Devices take subnormal numbers for 0.
        if (there != 0 && !std::isnormal(there)) given = std::numeric_limits<float>::quiet_NaN();
    }
    return std::bit_cast<uint32_t>(given);
}

Words combine_words(const core::Combine& c) {
    const auto words = [](uint64_t x) {
        return std::vector<uint32_t>{static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
    };
    const auto parts = stride_bytes(c.parts_strides, c.parts_dtype),
               out = stride_bytes(c.out_strides, c.dtype);
    return {{"part_stride", words(c.part_stride * bytes_of(c.parts_dtype))},
            {"part_batch", words(parts[0])},
            {"part_head", words(parts[1])},
            {"part_seq", words(parts[2])},
            {"out_batch", words(out[0])},
            {"out_head", words(out[1])},
            {"out_seq", words(out[2])},
            {"num_parts", {c.num_parts}},
            {"num_heads", {c.num_heads}},
            {"seqlen_q", {c.seqlen_q}},
            {"num_heads_all", {c.batch * c.num_heads}}};
}

// The gradient of the mask is never cut, so its shader reads none.
uint32_t num_steps(const Given& g, const Pipeline& pipeline) {
    const Kind kind = kind_of(pipeline);
    if (kind == Kind::spilled) return 0;  // no loop of this kernel is cut
    if (kind != Kind::dquery && kind != Kind::dkey_dvalue) return words_in(pipeline, "num_steps")[0];
    return static_cast<uint32_t>(std::min<uint64_t>(steps_of(g, pipeline), UINT32_MAX));
}

// The strides of the operands, or none where an argument block has them. A forward's last two words, which no shader
// reads as strides, tell of the parts.
std::vector<uint32_t> layout_words(const Given& g, const Pipeline& pipeline) {
    std::vector<uint32_t> words;
    for (const Region region : {Region::query, Region::key, Region::value, Region::out})
        for (const uint64_t stride : stride_bytes(strides_of(g, region), dtype_of(g.p, region)))
            words.push_back(constant(pipeline, "has_arguments") != 0 ? 0 : static_cast<uint32_t>(stride));
    if (kind_of(pipeline) != Kind::forward) return words;
    if (const Parts parts = parts_of(g); parts.span != 0) {
        words[9] = parts.fixed_cuts ? 0 : static_cast<uint32_t>(parts.count);
        words[10] = static_cast<uint32_t>(parts.span / tile_of(pipeline).kv);
        words[11] = static_cast<uint32_t>(g.heads());
    }
    return words;
}

// Links lead the tiles of the kernel that follows them, along the sequence that it does not hold.
Words link_words(const Given& g, const Pipeline& pipeline) {
    const Pipeline* const follower = follower_of(g.plan, pipeline);
    if (follower == nullptr) throw std::runtime_error("links that nobody follows");
    const Problem& p = g.p;
    const Tile tile = tile_of(*follower);
    const auto group = static_cast<uint32_t>(group_of(p, *follower));
    const auto down = static_cast<uint32_t>(tiles_of(p.seqlen_q, p.block_rows)),
               across = static_cast<uint32_t>(tiles_of(p.seqlen_kv, p.block_keys));
    struct Side {
        uint32_t rows, tile, block, step;
    } held{p.seqlen_q * group, static_cast<uint32_t>(tile.q), p.block_rows, across},
        walked{p.seqlen_kv, static_cast<uint32_t>(tile.kv), p.block_keys, 1};
    if (kind_of(*follower) == Kind::dkey_dvalue) std::swap(held, walked);
    return {{"num_heads", {constant(*follower, "packed_heads") != 0 ? p.num_heads_kv : p.block_map_heads}},
            {"map_heads", {p.block_map_heads}},
            {"blocks", {down * across}},
            {"rows_to_group", {group}},
            {"held_rows", {held.rows}},
            {"held_tile", {held.tile}},
            {"held_block", {held.block}},
            {"held_step", {held.step}},
            {"walked_rows", {walked.rows}},
            {"walked_tile", {walked.tile}},
            {"walked_block", {walked.block}},
            {"walked_step", {walked.step}},
            {"has_mask", {p.mask != VKATTN_MASK_NONE}}};
}

}  // namespace

std::string words_flaw(const Given& g, const Pipeline& pipeline) {
    if (kind_of(pipeline) == Kind::arguments) return "";  // see touches_flaw
    if (kind_of(pipeline) == Kind::links) return words_flaw(pipeline, link_words(g, pipeline));
    if (kind_of(pipeline) == Kind::combine) return words_flaw(pipeline, combine_words(combine_of(g)));
    const Problem& p = g.p;
    // A larger softcap counts as this one: twice it, in base 2, is within NO_MAXIMUM of lib/scores.glsl. One that is
    // subnormal leaves no score either.
    const double highest = 4.4e37f, lowest = std::numeric_limits<float>::min(), scale = p.softmax_scale,
                 cap = p.softcap > 0 ? std::clamp<double>(p.softcap, lowest, highest) : 0;
    const double unit = p.mask == VKATTN_MASK_FLOAT ? 1 : 1.4426950408889634;
    const core::Patch* const query = find_patch(pipeline, "query");
    const bool scales_nothing = query != nullptr && query->region == Region::dout;
    const double wanted = scales_nothing ? 1 : scale * unit;
    Words words{{"seqlen_q", {p.seqlen_q}},
                {"seqlen_kv", {p.seqlen_kv}},
                {"heads", {p.num_heads_q + p.num_heads_q / p.num_heads_kv * 65536}},
                {"score_scale", {rounded_as(pipeline, "score_scale", wanted)}},
                {"score_softcap", {rounded_as(pipeline, "score_softcap", cap * unit)}},
                {"bound_lo", {static_cast<uint32_t>(p.bound_lo)}},
                {"bound_hi", {static_cast<uint32_t>(p.bound_hi)}}};
    if (find_field(pipeline, "num_steps") != nullptr) words["num_steps"] = {num_steps(g, pipeline)};
    const bool strips = reads_spill(kind_of(pipeline)) || writes(pipeline, Region::spill);
    words["spill_heads"] = {strips ? words_in(*reader_of(g.plan), "spill_heads")[0] : 0};
    words["spill_steps"] = {strips ? words_in(*reader_of(g.plan), "spill_steps")[0] : 0};
    if (find_field(pipeline, "operand_layout") != nullptr)
        words["operand_layout"] = layout_words(g, pipeline);
    return words_flaw(pipeline, words);
}

namespace {

// Whether `rows` rows of `stride`, and as many heads as share a tile, lie beyond 31-bit offsets in bytes.
bool far_apart(uint64_t bytes, uint64_t rows, uint64_t stride, uint64_t heads, uint64_t head_stride,
               uint64_t inner) {
    const uint64_t limit = (uint64_t{1} << 31) / bytes;
    if (rows > 1 && stride > limit) return true;
    if (heads > 1 && head_stride > limit) return true;
    return (rows - 1) * stride + (heads - 1) * head_stride + inner > limit;
}

// True if rows of a tile of any tensor do, of the problem or of its backward if there is one. `slack` is the number of
// rows beyond those that the shaders address, which they may count as well.
bool far_tile(const Problem& p, const core::Backward* b, uint64_t tile_q, uint64_t tile_kv, uint64_t group,
              uint64_t slack) {
    // Packed: a tile that does not begin with a query's first head ends within one query more.
    const uint64_t all = (tile_q + 2 * (group - 1)) / group;
    const uint64_t queries = (slack != 0 ? all : std::min<uint64_t>(p.seqlen_q, all)) + slack,
                   keys = (slack != 0 ? tile_kv : std::min<uint64_t>(p.seqlen_kv, tile_kv)) + slack;
    const auto far = [&](uint64_t rows, const VkattnStrides& s, uint64_t heads,
                         Region region = Region::query) {
        // An element of a block takes these bytes at most.
        const VkattnDtype dtype = dtype_of(p, region);
        const uint64_t bytes = has_blocks(dtype) ? (bytes_of(dtype) + 31) / 32 : bytes_of(dtype);
        return rows != 0 &&
               far_apart(bytes, rows, s.seq, heads, s.head, slack != 0 ? VKATTN_MAX_HEAD_DIM : 1);
    };
    if (p.mask != VKATTN_MASK_NONE && queries != 0 &&
        far_apart(bytes_of(dtype_of_mask(p)), queries, mask_strides(p)[2] + (slack != 0 ? p.seqlen_kv : 0),
                  group, mask_strides(p)[1], mask_extents(p)[3]))
        return true;
    if (far(queries, p.query_strides, group) || far(queries, p.out_strides, group, Region::out) ||
        far(keys, p.key_strides, 1, Region::key) || far(keys, p.value_strides, 1, Region::value))
        return true;
    return b != nullptr && (far(queries, b->dout_strides, 1) || far(queries, b->dquery_strides, 1) ||
                            far(keys, b->dkey_strides, 1) || far(keys, b->dvalue_strides, 1));
}

// True if some head of an operand of the backward reaches beyond indices of 31 bits, in 16 bytes. `slack` is 1 where a
// row may be counted that does not exist.
bool far_head(const Problem& p, const core::Backward& b, uint64_t slack) {
    const auto far = [&](uint64_t rows, const VkattnStrides& s) {
        return rows > 1 && s.seq > (uint64_t{1} << 35) / p.element_bytes / (rows - 1 + slack);
    };
    return far(p.seqlen_q, p.query_strides) || far(p.seqlen_q, b.dout_strides) ||
           far(p.seqlen_kv, p.key_strides) || far(p.seqlen_kv, p.value_strides);
}

}  // namespace

std::string choices_flaw(const Given& g, const Pipeline& pipeline) {
    const auto has_no_rows = [](Kind kind) {
        return kind == Kind::combine || kind == Kind::arguments || kind == Kind::links;
    };
    if (has_no_rows(kind_of(pipeline))) return "";
    const uint32_t packed = constant(pipeline, "packed_heads"), far = constant(pipeline, "far_rows");
    if (packed > 1 || far > 1) return "not a boolean";
    const uint64_t group = group_of(g.p, pipeline);
    if (packed != 0 && g.backward != nullptr) return "packed";
    if (packed != 0 && g.p.seqlen_q >= tile_of(pipeline).q)
        return "packed, though a head fills tiles of its own";
    uint64_t widest_q = g.backward != nullptr ? 64 : 1, widest_kv = 1;
    for (const Pipeline& other : g.plan.pipelines) {
        const Kind kind = kind_of(other);
        if (has_no_rows(kind)) continue;
        if (constant(other, "packed_heads") != packed) return "not all pipelines pack";
        const Tile tile = tile_of(other);
        // The baseline's backward has one number for both sequences.
        const bool both = g.backward != nullptr && (kind == Kind::scores || kind == Kind::transposed);
        widest_q = std::max({widest_q, tile.q, both ? tile.kv : 1});
        widest_kv = std::max({widest_kv, tile.kv, both ? tile.q : 1});
    }
    const Tile tile = tile_of(pipeline);
    // The pass for classes reads no gradient.
    const core::Backward* const read = kind_of(pipeline) == Kind::classes ? nullptr : g.backward;
    const auto has_far_head = [&](uint64_t slack) {
        return g.backward != nullptr && on_matrices(g.plan) && far_head(g.p, *g.backward, slack);
    };
    if (far == 0 &&
        ((on_matrices(pipeline) && has_far_head(0)) || far_tile(g.p, read, tile.q, tile.kv, group, 0)))
        return "far_rows is needed";
    if (far != 0 && !has_far_head(1) && !far_tile(g.p, g.backward, widest_q, widest_kv, group, 2))
        return "far_rows is needless";
    return "";
}

}  // namespace vkattn::test
