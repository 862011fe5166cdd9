#include "plan_model.hpp"

#include <algorithm>
#include <stdexcept>

#include "plan_arrays.hpp"
#include "plan_checks.hpp"

namespace vkattn::test {
namespace {

uint64_t hash(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

std::pair<int64_t, int64_t> keys_of_rows(const core::Problem& p, uint64_t first, uint64_t last) {
    if (p.dynamic_bounds) return {0, p.key_limit};  // whatever the offsets come to
    const int64_t begin = static_cast<int64_t>(first) + p.bound_lo,
                  end = static_cast<int64_t>(last) + p.bound_hi + 1;
    return {std::max<int64_t>(0, begin), std::min<int64_t>(p.key_limit, end)};
}

bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

namespace {

// "_f16_bias": the storage's type, then the macros of the module.
ModuleFacts matrix_facts(const std::string& type_and_macros) {
    constexpr auto f16 = VKATTN_DTYPE_FLOAT16, bf16 = VKATTN_DTYPE_BFLOAT16, f32 = VKATTN_DTYPE_FLOAT32;
    struct Module {
        const char* name;
        VkattnDtype dtype, operands;
        bool rounded_accumulators, conversions, bias,
            may_run;  // may_run: there is one with a running maximum, too
    };
    const std::string running = "_running";
    const bool runs = ends_with(type_and_macros, running);
    std::string rest =
        type_and_macros.substr(0, type_and_macros.size() - (runs ? running.size() : size_t{0}));
    const std::string turned = "_turned";  // behind the type
    const size_t at_turned = rest.find(turned);
    if (at_turned != rest.npos) rest.erase(at_turned, turned.size());
    for (const Module& m : {Module{"_f16", f16, f16, false, false, false, true},
                            {"_f16_rounded", f16, f16, true, false, false, true},
                            {"_f16_nv2", f16, f16, false, true, false, true},
                            {"_f16_bias", f16, f16, false, false, true, false},
                            {"_bf16", bf16, bf16, false, false, false, true},
                            {"_bf16_nv2", bf16, bf16, false, true, false, true},
                            {"_bf16_bias", bf16, bf16, false, false, true, false},
                            {"_f16_of_f32", f32, f16, false, false, false, true},
                            {"_bf16_of_f32", f32, bf16, false, false, false, true}})
        if (rest == m.name && (!runs || m.may_run))
            return {Kind::forward,
                    m.dtype,
                    m.operands,
                    false,
                    false,
                    true,
                    m.rounded_accumulators,
                    m.conversions,
                    m.bias,
                    runs,
                    false,
                    at_turned != std::string::npos};
    throw std::runtime_error("plan_model.cpp does not know the matrix module " + type_and_macros);
}

// The same of a pass of the backward.
ModuleFacts backward_matrix_facts(Kind kind, const std::string& type_and_macros) {
    ModuleFacts facts = matrix_facts(type_and_macros);
    if (facts.conversions || facts.bias || facts.running)
        throw std::runtime_error("no module of the backward: " + type_and_macros);
    facts.kind = kind;
    return facts;
}

ModuleFacts facts_by_name(std::string name) {
    for (const auto& [start, kind] : {std::pair{std::string("backward_matrix_query"), Kind::dquery},
                                      {std::string("backward_matrix_key_value"), Kind::dkey_dvalue},
                                      {std::string("backward_matrix_mask"), Kind::dbias}})
        if (name.starts_with(start)) return backward_matrix_facts(kind, name.substr(start.size()));
    if (const std::string matrix = "forward_matrix"; name.compare(0, matrix.size(), matrix) == 0)
        return matrix_facts(name.substr(matrix.size()));
    ModuleFacts facts{};
    facts.packed_words = ends_with(name, "_packed");
    if (facts.packed_words) name.resize(name.size() - 7);
    facts.dot = ends_with(name, "_dot");
    if (facts.dot) name.resize(name.size() - 4);
    const auto dtypes = {std::pair{"_bf16", VKATTN_DTYPE_BFLOAT16},
                         {"_f16", VKATTN_DTYPE_FLOAT16},
                         {"_f32", VKATTN_DTYPE_FLOAT32}};
    const auto* dtype =
        std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& d) { return ends_with(name, d.first); });
    if (dtype == dtypes.end()) throw std::runtime_error(name + " does not say its dtype");
    facts.dtype = facts.operands = dtype->second;
    name.resize(name.rfind('_'));
    for (const auto& [text, kind] : {std::pair{"forward_tiles", Kind::forward},
                                     {"forward_rows", Kind::forward},
                                     {"mask_classes", Kind::classes},
                                     {"combine", Kind::combine},
                                     {"materialized_scores", Kind::scores},
                                     {"materialized_softmax", Kind::softmax},
                                     {"materialized_output", Kind::output},
                                     {"materialized_gradient", Kind::gradient},
                                     {"materialized_transposed", Kind::transposed},
                                     {"backward_delta", Kind::delta},
                                     {"backward_query", Kind::dquery},
                                     {"backward_key_value", Kind::dkey_dvalue},
                                     {"backward_mask", Kind::dbias}})
        if (name == text) {
            facts.kind = kind;
            facts.rows_kernel = name == "forward_rows";
            return facts;
        }
    throw std::runtime_error("plan_model.cpp does not know the module " + name);
}

}  // namespace

const ModuleFacts& facts_of(core::Module module) {
    // Plans have thousands of dispatches with one module.
    static std::array<std::optional<ModuleFacts>, static_cast<size_t>(core::Module::count)> known;
    std::optional<ModuleFacts>& facts = known.at(static_cast<size_t>(module));
    if (!facts) facts = facts_by_name(std::string(core::name_of(module)));
    return *facts;
}

Values constants_of(const core::Pipeline& pipeline) {
    Values values;
    const auto constants = core::info_of(core::info_of(pipeline.module).kernel).constants;
    for (size_t i = 0; i < constants.size(); i++) values[constants[i].name] = pipeline.constants[i];
    return values;
}

uint32_t constant(const core::Pipeline& pipeline, std::string_view name) {
    const auto constants = core::info_of(core::info_of(pipeline.module).kernel).constants;
    for (size_t i = 0; i < constants.size(); i++)
        if (constants[i].name == name) return pipeline.constants[i];
    throw std::runtime_error(std::string(name_of(pipeline)) + " has no constant " + std::string(name));
}

const core::FieldInfo* find_field(core::Kernel kernel, std::string_view name) {
    for (const core::FieldInfo& field : core::info_of(kernel).fields)
        if (field.name == name) return &field;
    return nullptr;
}

uint64_t round_up(uint64_t x, uint64_t to) {
    return (x + to - 1) / to * to;
}

namespace {

// Word 10 of operand_layout: lib/operand_layout.glsl.
uint32_t split_tiles_of(const core::Pipeline& pipeline) {
    const core::FieldInfo* layout = find_field(core::info_of(pipeline.module).kernel, "operand_layout");
    if (layout == nullptr || layout->size_bytes != 48) throw std::runtime_error("operands lie elsewhere");
    uint32_t words[12];
    std::memcpy(words, pipeline.push.data() + layout->offset_bytes, sizeof words);
    return words[10];
}

}  // namespace

Model model_of(const core::Problem& p, const core::Plan& plan) {
    Model m;
    if (plan.backward && is_of_matrix_kernel(plan)) {
        m.tile_q = plan.tiles.tile_q;
        m.tile_kv = plan.tiles.tile_kv;
    } else if (is_of_matrix_kernel(plan)) {
        m.matrix = matrix_model_of(p, plan);
        m.tile_q = plan.tiles.tile_q;  // workgroup_flaw has compared these with the shader's
        m.tile_kv = plan.tiles.tile_kv;
        m.slices = m.matrix->slices;
        m.n = {};
    } else {
        m.n = parse_numbers(plan.tuning);
        m.tile_q = m.n.tile_q();
        m.tile_kv = m.n.tile_kv();
    }
    m.pool_vec4 = plan.tiles.shared_bytes / 16;
    m.rows = uint64_t{p.batch} * p.num_heads_q * p.seqlen_q;
    m.key_tiles = tiles_of(p.seqlen_kv, m.tile_kv);
    if (p.seqlen_q != 0) {
        const auto [begin, end] = keys_of_rows(p, 0, p.seqlen_q - 1);
        if (begin < end) {
            m.begin = static_cast<uint64_t>(begin);
            m.end = static_cast<uint64_t>(end);
        }
    }
    for (const core::Pipeline& pipeline : plan.pipelines) {
        const Kind kind = kind_of(pipeline);
        if (kind == Kind::classes) m.classified = true;
        if (kind != Kind::forward) continue;
        if (constant(pipeline, "packed_heads") != 0) m.group = p.num_heads_q / p.num_heads_kv;
        if (constant(pipeline, "is_split") != 0) m.span = uint64_t{split_tiles_of(pipeline)} * m.tile_kv;
    }
    m.heads = uint64_t{p.batch} * p.num_heads_q / m.group;
    m.query_tiles = tiles_of(p.seqlen_q * m.group, m.tile_q);
    if (m.span != 0) {
        m.first_part = m.begin / m.span;
        m.parts = tiles_of(m.end, m.span) - m.first_part;
    }
    return m;
}

uint64_t key_tiles_of(const core::Problem& p, const Model& m, uint64_t query_tile, uint64_t part) {
    const uint64_t first = query_tile * m.tile_q, rows = p.seqlen_q * m.group;
    const uint64_t last = std::min(first + m.tile_q, rows) - 1;
    auto [begin, end] = keys_of_rows(p, first / m.group, last / m.group);
    if (m.span != 0) {
        begin = std::max(begin, static_cast<int64_t>(part * m.span));
        end = std::min(end, static_cast<int64_t>((part + 1) * m.span));
    }
    if (begin >= end) return 0;
    const uint64_t all =
        tiles_of(static_cast<uint64_t>(end), m.tile_kv) - static_cast<uint64_t>(begin) / m.tile_kv;
    if (!p.dynamic_bounds || p.bound_lo == INT32_MIN || p.bound_hi == INT32_MAX) return all;
    // A band of which only the width is known: it can begin with the last key of a tile.
    const int64_t band = int64_t{p.bound_hi} - p.bound_lo + 1;
    if (band <= 0) return 0;
    const uint64_t keys = static_cast<uint64_t>(band) + last / m.group - first / m.group;
    return std::min(all, (keys + m.tile_kv - 2) / m.tile_kv + 1);
}

std::array<uint64_t, 12> stride_bytes(const core::Problem& p) {
    const uint64_t bytes = p.dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
    std::array<uint64_t, 12> out{};
    for (size_t t = 0; t < 4; t++) {
        const VkattnStrides& s = p.strides(static_cast<int>(t));
        out[3 * t] = s.batch * bytes;
        out[3 * t + 1] = s.head * bytes;
        out[3 * t + 2] = s.seq * bytes;
    }
    return out;
}

bool needs_arguments(const core::Problem& p) {
    const auto strides = stride_bytes(p);
    return std::any_of(strides.begin(), strides.end(), [](uint64_t s) { return s > UINT32_MAX; }) ||
           p.mask != VKATTN_MASK_NONE || std::ranges::any_of(optional_arrays_of(p), &OptionalArray::asked);
}

std::array<uint64_t, 4> mask_extents(const core::Problem& p) {
    std::array<uint64_t, 4> extents{1, 1, 1, 1};
    if (p.mask == VKATTN_MASK_NONE) return extents;  // rank and extents can be anything
    for (uint32_t i = 0; i < p.mask_rank; i++) extents[4 - p.mask_rank + i] = p.mask_extents[i];
    return extents;
}

std::array<uint64_t, 3> mask_strides(const core::Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return {};
    return {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
}

uint64_t class_heads(const core::Problem& p, const Model& m) {
    if (mask_strides(p)[1] == 0) return 1;
    const uint64_t of_mask = mask_extents(p)[1], of_tiles = p.num_heads_q / m.group;
    return of_tiles % of_mask == 0 ? of_mask : of_tiles;
}

core::Combine combine_of(const core::Problem& p, const Model& m) {
    core::Combine c{};
    const uint64_t head = uint64_t{p.seqlen_q} * p.head_dim_v;
    c.dtype = p.dtype;
    c.parts_dtype = VKATTN_DTYPE_FLOAT32;
    c.num_parts = static_cast<uint32_t>(m.parts);
    c.batch = p.batch;
    c.num_heads = p.num_heads_q;
    c.seqlen_q = p.seqlen_q;
    c.head_dim_v = p.head_dim_v;
    c.part_stride = m.rows * p.head_dim_v;
    c.parts_strides = {p.num_heads_q * head, head, p.head_dim_v};
    c.out_strides = p.out_strides;
    // Rows of a part begin at multiples of 16 bytes only where they are whole vec4.
    c.alignment_bytes = p.head_dim_v % 4 == 0 ? p.alignment_bytes : 4;
    c.element_bytes = p.element_bytes;
    return c;
}

uint64_t Cover::corners(const Triple& first, const Triple& count) {
    uint64_t sum = 0;
    for (unsigned corner = 0; corner < 8; corner++) {
        uint64_t at = 0;
        for (size_t i = 0; i < 3; i++) at = hash(at ^ (first[i] + (corner >> i & 1) * count[i]));
        sum += __builtin_popcount(corner) % 2 == 0 ? at : 0 - at;
    }
    return sum;
}

}  // namespace vkattn::test
