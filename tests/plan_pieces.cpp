// What a pipeline is compared by: constants and push constants by their names, patches by the fields that they fill.
#include "plan_pieces.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "plan_arrays.hpp"

namespace vkattn::test {

using core::Patch;
using core::Pipeline;
using core::Problem;

std::map<std::string, uint32_t> values_in(const std::string& text) {
    std::map<std::string, uint32_t> values;
    for (size_t at = 0; at < text.size();) {
        const size_t equals = text.find('=', at), end = std::min(text.find(',', at), text.size());
        if (equals >= end) throw std::runtime_error("not key=value,...: " + text);
        const unsigned long value = std::stoul(text.substr(equals + 1, end - equals - 1));
        values[text.substr(at, equals - at)] = static_cast<uint32_t>(value);
        at = end + 1;
    }
    return values;
}

namespace {

// Constants that nonfinite_flaw judges. The last is of another quirk than those of numbers that are not finite.
constexpr std::string_view of_nonfinite[] = {"exp2_loses_nan", "isolates_rows", "holds_blocks"};

template <class All, class T>
bool is_one_of(const All& names, const T& name) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Keys of row i, within those that there are.
std::pair<int64_t, int64_t> keys_of(const core::Problem& p, int64_t i) {
    const int64_t keys = p.seqlen_kv;
    return {std::clamp<int64_t>(i + p.bound_lo, 0, keys), std::clamp<int64_t>(i + p.bound_hi + 1, 0, keys)};
}

// What is known of rows of a head: they all see the same keys, or all keys.
bool rows_see_alike(const core::Problem& p) {
    if (p.mask != VKATTN_MASK_NONE) return false;
    if (p.seqlen_q <= 1) return true;
    if (p.dynamic_bounds) return p.bound_lo == INT32_MIN && p.bound_hi == INT32_MAX;
    return keys_of(p, 0) == keys_of(p, int64_t{p.seqlen_q} - 1);
}
bool rows_see_all(const core::Problem& p) {
    return rows_see_alike(p) && (p.seqlen_q <= 1 || p.dynamic_bounds ||
                                 keys_of(p, 0) == std::pair<int64_t, int64_t>{0, p.seqlen_kv});
}

// Why isolates_rows is wrong, or "".
const char* isolation_flaw(const core::Options& options, const core::Plan& plan, uint32_t isolates) {
    if (isolates > 1) return "not a boolean";
    if (isolates == 0)
        return options.batch_invariant && !rows_see_alike(plan.problem) ? "needed: NaN would spread" : "";
    if (!options.batch_invariant) return "needless: it is not asked for";
    return plan.problem.seqlen_kv != 0 && rows_see_all(plan.problem) ? "needless: rows see all keys" : "";
}

}  // namespace

std::string nonfinite_flaw(const core::DeviceCaps& caps, const core::Options& options,
                           const core::Plan& plan) {
    for (const Pipeline& pipeline : plan.pipelines) {
        const auto constants = core::info_of(core::info_of(pipeline.module).kernel).constants;
        for (size_t i = 0; i < constants.size(); i++) {
            const uint32_t value = pipeline.constants[i];
            const bool swiftshader = caps.driver_id == 10;
            if (constants[i].name == of_nonfinite[0] && value != swiftshader)
                return fmt::format("{}: {} is {}", name_of(pipeline), constants[i].name, value);
            const bool holds = caps.type == core::DeviceType::cpu
                                   ? !swiftshader
                                   : caps.vendor_id == 0x5143 && caps.driver_id == core::driver_turnip &&
                                         !caps.name.ends_with("660");
            if (constants[i].name == of_nonfinite[2] && value != holds)
                return fmt::format("{}: {} is {}", name_of(pipeline), constants[i].name, value);
            if (constants[i].name != of_nonfinite[1]) continue;
            if (const std::string why = isolation_flaw(options, plan, value); !why.empty())
                return fmt::format("{}: {} is {}, {}", name_of(pipeline), constants[i].name, value, why);
        }
    }
    return "";
}

std::string constants_flaw(const Pipeline& pipeline, const Values& expected) {
    const auto constants = core::info_of(core::info_of(pipeline.module).kernel).constants;
    for (size_t i = 0; i < constants.size(); i++) {
        const std::string_view name = constants[i].name;
        if (is_one_of(of_nonfinite, name)) continue;
        const auto found = expected.find(name);
        if (found == expected.end())
            return fmt::format("constants of {}: the checks do not know {}", name_of(pipeline), name);
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

namespace {

constexpr std::string_view addresses[] = {
    "query",     "key",    "value",   "out_rows",        "lse",    "arguments", "classes", "parts",
    "parts_lse", "scores", "weights", "score_gradients", "results"};
constexpr std::string_view of_cut[] = {"first_x", "first_y", "first_z", "first_step", "end_step"};

std::string name_of_word(const core::KernelInfo& kernel, size_t word) {
    for (const core::FieldInfo& field : kernel.fields)
        if (4 * word >= field.offset_bytes && 4 * word < field.offset_bytes + field.size_bytes)
            return std::string(field.name);
    return "what is no field";
}

}  // namespace

std::string words_flaw(const Pipeline& pipeline, const Words& expected) {
    const core::KernelInfo& kernel = core::info_of(core::info_of(pipeline.module).kernel);
    std::array<uint32_t, core::max_push_bytes / 4> wanted{}, there{};
    std::memcpy(there.data(), pipeline.push.data(), sizeof there);
    for (const core::FieldInfo& field : kernel.fields) {
        if (is_one_of(addresses, field.name) || is_one_of(of_cut, field.name)) continue;
        const auto found = expected.find(field.name);
        if (found == expected.end() || 4 * found->second.size() != field.size_bytes)
            return fmt::format("push constants of {}: the checks do not know {}", name_of(pipeline),
                               field.name);
        std::copy(found->second.begin(), found->second.end(), wanted.begin() + field.offset_bytes / 4);
    }
    for (size_t word = 0; word < there.size(); word++)
        if (there[word] != wanted[word])
            return fmt::format("push constants of {}: word {}, of {}, is {}, not {}", name_of(pipeline), word,
                               name_of_word(kernel, word), there[word], wanted[word]);
    return "";
}

namespace {

// The float in a field if it comes close to what it must be, else what it must be.
uint32_t rounded_as(const Pipeline& pipeline, std::string_view name, double wanted) {
    const core::FieldInfo* field = find_field(core::info_of(pipeline.module).kernel, name);
    const auto most = double{std::numeric_limits<float>::max()};
    wanted = std::clamp(wanted, -most, most);
    auto given = static_cast<float>(wanted);
    if (field != nullptr) {
        float there;
        std::memcpy(&there, pipeline.push.data() + field->offset_bytes, sizeof there);
        const double smallest = std::numeric_limits<float>::denorm_min();
        if (std::abs(there - wanted) <= 2e-7 * std::abs(wanted) + 2 * smallest) given = there;
    }
    return std::bit_cast<uint32_t>(given);
}

}  // namespace

Words words_of(const Problem& p, const Pipeline& pipeline) {
    // A larger softcap counts as this one: twice it, in base 2, is within NO_MAXIMUM of lib/scores.glsl.
    const double highest = 4.4e37f, cap = std::min<double>(p.softcap, highest);
    const double unit = p.mask == VKATTN_MASK_FLOAT ? 1 : 1.4426950408889634, scale = p.softmax_scale;
    return {{"seqlen_q", {p.seqlen_q}},
            {"seqlen_kv", {p.seqlen_kv}},
            {"heads", {p.num_heads_q + p.num_heads_q / p.num_heads_kv * 65536}},
            {"score_scale", {rounded_as(pipeline, "score_scale", cap > 0 ? scale / cap : scale * unit)}},
            {"score_softcap", {rounded_as(pipeline, "score_softcap", cap * unit)}},
            {"bound_lo", {static_cast<uint32_t>(p.bound_lo)}},
            {"bound_hi", {static_cast<uint32_t>(p.bound_hi)}}};
}

std::vector<uint32_t> layout_words(const Problem& p, bool arguments) {
    std::vector<uint32_t> words(12);
    const auto strides = stride_bytes(p);
    for (size_t i = 0; i < words.size() && !arguments; i++) words[i] = static_cast<uint32_t>(strides[i]);
    return words;
}

void Touches::patch(std::string_view field, core::Region region, uint64_t add) {
    const core::FieldInfo* found = find_field(kernel, field);
    if (found == nullptr) throw std::runtime_error(fmt::format("no push constant {}", field));
    patches.push_back({found->offset_bytes, region, add});
}

void Touches::reads_arguments(uint64_t add) {
    patch(find_field(kernel, "arguments") != nullptr ? "arguments" : "operand_layout",
          core::Region::arguments, add);
    reads |= bit(core::Region::arguments);
}

std::string patch_flaw(const std::vector<Patch>& patches, const std::vector<Patch>& expected) {
    if (patches.size() != expected.size())
        return fmt::format("{} patches, not {}", patches.size(), expected.size());
    const auto same = [](const Patch& a, const Patch& b) {
        return a.at == b.at && a.region == b.region && a.add == b.add;
    };
    for (const Patch& e : expected)
        if (std::none_of(patches.begin(), patches.end(), [&](const Patch& x) { return same(x, e); }))
            return fmt::format("no patch of {} at {} with {:#x}", name_of(e.region), e.at, e.add);
    return "";
}

std::string touches_flaw(const Touches& t, const Pipeline& pipeline) {
    if (pipeline.writes != t.writes)
        return fmt::format("{} writes {:#x}, the shader {:#x}", name_of(pipeline), pipeline.writes, t.writes);
    if ((pipeline.reads & ~t.may_read) != t.reads)
        return fmt::format("{} reads {:#x}, the shader {:#x}", name_of(pipeline), pipeline.reads, t.reads);
    const std::string flaw = patch_flaw(pipeline.patches, t.patches);
    return flaw.empty() ? "" : fmt::format("{}: {}", name_of(pipeline), flaw);
}

namespace {

// Words of a cut for which the kernel has no field.
std::string cut_flaw(const Pipeline& pipeline, const core::Cut& cut) {
    const core::Kernel kernel = core::info_of(pipeline.module).kernel;
    const uint32_t words[] = {cut.first[0], cut.first[1], cut.first[2], cut.first_step, cut.end_step};
    for (size_t i = 0; i < std::size(words); i++)
        if (words[i] != 0 && find_field(kernel, of_cut[i]) == nullptr)
            return fmt::format("{} has no {}, which is {}", name_of(pipeline), of_cut[i], words[i]);
    return "";
}

}  // namespace

std::string pipelines_flaw(const core::Plan& plan, bool spare) {
    std::vector<bool> used(plan.pipelines.size());
    for (const core::Dispatch& d : plan.dispatches) {
        if (d.pipeline >= used.size()) return fmt::format("pipeline {} of {}", d.pipeline, used.size());
        used[d.pipeline] = true;
        if (auto flaw = cut_flaw(plan.pipelines[d.pipeline], d.cut); !flaw.empty()) return flaw;
    }
    if (spare) return "";
    std::vector<core::Kernel> kernels;
    for (size_t i = 0; i < used.size(); i++) {
        const core::Kernel kernel = core::info_of(plan.pipelines[i].module).kernel;
        if (!used[i]) return fmt::format("no dispatch has pipeline {}, {}", i, name_of(plan.pipelines[i]));
        // dkey and dvalue may have a pass each.
        const bool apart = kernel == core::Kernel::backward_matrix_key_value &&
                           constant(plan.pipelines[i], "gradients") == 2;
        if (is_one_of(kernels, kernel) && !apart) return fmt::format("{} twice", name_of(plan.pipelines[i]));
        kernels.push_back(kernel);
    }
    return "";
}

uint32_t type_constant(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT16    ? TYPE_FLOAT16
           : dtype == VKATTN_DTYPE_BFLOAT16 ? TYPE_BFLOAT16
                                            : TYPE_FLOAT32;
}

uint32_t mask_constant(const Problem& p) {
    return p.mask == VKATTN_MASK_BOOL ? MASK_BOOL : p.mask == VKATTN_MASK_FLOAT ? MASK_FLOAT : MASK_NONE;
}

Values problem_constants(const Problem& p, const Model& m) {
    const uint32_t element = p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    Values values{{"head_dim_qk", p.head_dim_qk},
                  {"head_dim_v", p.head_dim_v},
                  {"load_bytes", p.alignment_bytes >= 4 * element ? 4 * element : element},
                  {"has_arguments", needs_arguments(p)},
                  {"is_split", 0},
                  {"slices", 1},
                  {"pool_vec4", m.pool_vec4},
                  {"out_type", type_constant(p.dtype)},
                  {"mask_type", type_constant(p.dtype)},
                  {"has_dlse", 0},
                  {"is_resumed", 0}};
    values.merge(term_constants(p));
    return values;
}

std::string form_flaw(const Pipeline& pipeline, uint32_t rolled) {
    const core::ModuleInfo& module = core::info_of(pipeline.module);
    if (pipeline.rolled != (rolled != 0 && module.forms == 2))
        return fmt::format("{}: the form of another type of device", module.name);
    return "";
}

uint32_t unit_of_mask_rows(const Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return 0;
    const uint64_t element = p.mask == VKATTN_MASK_BOOL ? 1 : p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    uint64_t unit = 16;
    for (const uint64_t stride : mask_strides(p))
        while (stride * element % unit != 0) unit /= 2;
    return static_cast<uint32_t>(unit);
}

}  // namespace vkattn::test
