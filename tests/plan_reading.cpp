#include "plan_reading.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "plan/terms.hpp"
#include "plan_arrays.hpp"

namespace vkattn::test {

using core::bit;
using core::Pipeline;
using core::Problem;
using core::Region;

namespace {

// A kernel's part by its fields. What a pass of the backward writes tells it from the others, as it tells the two kinds
// of products.
Kind kind_of(core::Kernel kernel) {
    const auto has = [&](std::string_view field) { return find_field(kernel, field) != nullptr; };
    if (has("block")) return Kind::arguments;
    if (has("parts")) return Kind::combine;
    if (has("classes")) return Kind::classes;
    if (has("links")) return Kind::links;
    if (has("decoded")) return Kind::decoding;
    if (has("weights") && has("value")) return Kind::product;
    if (has("scores") && has("query")) return Kind::scores;
    if (has("scores") || has("score_gradients")) return Kind::in_place;
    if (has("query")) return has("out_rows") ? Kind::forward : Kind::dkey_dvalue;
    return has("out_rows") ? Kind::delta : has("spill") ? Kind::spilled_bias : Kind::none;
}

}  // namespace

Kind kind_of(const Pipeline& pipeline) {
    static const std::vector<Kind> kinds = [] {  // plans have thousands of dispatches of one kernel
        std::vector<Kind> all;
        for (uint32_t k = 0; k < static_cast<uint32_t>(core::Kernel::count); k++)
            all.push_back(kind_of(static_cast<core::Kernel>(k)));
        return all;
    }();
    const Kind kind = kinds.at(static_cast<size_t>(pipeline.module.kernel));
    if (writes(pipeline, Region::dsinks)) return Kind::dsinks;
    if (kind == Kind::none)
        throw std::runtime_error(fmt::format("{} has no part in attention", name_of(pipeline)));
    if (kind == Kind::product && (writes(pipeline, Region::dkey) || writes(pipeline, Region::dvalue)))
        return Kind::transposed;
    if (kind == Kind::dkey_dvalue && writes(pipeline, Region::dquery))
        return find_field(pipeline, "spill") != nullptr ? Kind::spilled : Kind::dquery;
    return kind == Kind::dkey_dvalue && writes(pipeline, Region::dbias) ? Kind::dbias : kind;
}

size_t count_of(const core::Plan& plan, Kind kind) {
    const auto has = [&](const core::Dispatch& d) { return kind_of(plan, d) == kind; };
    return static_cast<size_t>(std::ranges::count_if(plan.dispatches, has));
}

bool on_matrices(const core::Plan& plan) {
    return std::ranges::any_of(plan.pipelines, [](const Pipeline& x) { return on_matrices(x); });
}

bool has_part(const core::Module& module, std::string_view part) {
    const std::string_view name = core::name_of(module);
    for (size_t at = name.find(part); at != name.npos; at = name.find(part, at + 1))
        if (const size_t end = at + part.size(); end == name.size() || name[end] == '_') return true;
    return false;
}

Values constants_of(const Pipeline& pipeline) {
    Values values;
    const auto constants = core::info_of(pipeline.module.kernel).constants;
    for (size_t i = 0; i < constants.size(); i++) values[constants[i]] = pipeline.constants[i];
    return values;
}

namespace {

std::string_view name_of(std::string_view constant) {
    return constant;
}
std::string_view name_of(const core::FieldInfo& field) {
    return field.name;
}

// Returns where a list of constants or fields has this name, or its size if it does not. Names are looked up by the
// million, and few of them end alike.
template <class All>
size_t index_of(const All& all, std::string_view name) {
    size_t i = 0;
    while (i < all.size() && (name_of(all[i]).back() != name.back() || name_of(all[i]) != name)) i++;
    return i;
}

}  // namespace

bool has_constant(const Pipeline& pipeline, std::string_view name) {
    const auto constants = core::info_of(pipeline.module.kernel).constants;
    return index_of(constants, name) != constants.size();
}

uint32_t constant(const Pipeline& pipeline, std::string_view name) {
    const auto constants = core::info_of(pipeline.module.kernel).constants;
    if (const size_t i = index_of(constants, name); i != constants.size()) return pipeline.constants[i];
    throw std::runtime_error(fmt::format("{} has no constant {}", name_of(pipeline), name));
}

uint64_t divisor(const Pipeline& pipeline, std::string_view name) {
    const uint32_t value = constant(pipeline, name);
    if (value == 0) throw std::runtime_error(fmt::format("{}: {} is 0", name_of(pipeline), name));
    return value;
}

const core::FieldInfo* find_field(core::Kernel kernel, std::string_view name) {
    const auto fields = core::info_of(kernel).fields;
    const size_t i = index_of(fields, name);
    return i != fields.size() ? &fields[i] : nullptr;
}

const core::FieldInfo* find_field(const Pipeline& pipeline, std::string_view name) {
    return find_field(pipeline.module.kernel, name);
}

std::vector<uint32_t> words_in(const Pipeline& pipeline, std::string_view name) {
    const core::FieldInfo* field = find_field(pipeline, name);
    if (field == nullptr) throw std::runtime_error(fmt::format("{} has no {}", name_of(pipeline), name));
    std::vector<uint32_t> words(field->size_bytes / 4);
    std::memcpy(words.data(), pipeline.push.data() + field->offset_bytes, field->size_bytes);
    return words;
}

const core::Patch* find_patch(const Pipeline& pipeline, std::string_view field) {
    const core::FieldInfo* const at = find_field(pipeline, field);
    for (const core::Patch& patch : pipeline.patches)
        if (at != nullptr && patch.at == at->offset_bytes) return &patch;
    return nullptr;
}

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

const std::map<std::string, uint32_t>& Given::tuning() const {
    if (numbers.empty()) numbers = values_in(plan.tuning);
    return numbers;
}

const uint32_t* number_of(const std::map<std::string, uint32_t>& tuning, const Pipeline& pipeline,
                          std::string_view name) {
    const Kind kind = kind_of(pipeline);
    const char* const pass = kind == Kind::dquery        ? "q_"
                             : kind == Kind::dkey_dvalue ? "kv_"
                             : kind == Kind::dbias       ? "mask_"
                             : kind == Kind::spilled     ? "spilled_"
                                                         : "";
    static thread_local std::string key;  // whose memory is kept
    for (const char* const prefix : {pass, ""}) {
        key.assign(prefix).append(name);
        if (const auto found = tuning.find(key); found != tuning.end()) return &found->second;
        if (*pass == '\0') break;
    }
    return nullptr;
}

Tile tile_of(const Pipeline& pipeline) {
    const auto of = [&](std::string_view name) { return divisor(pipeline, name); };
    const auto has = [&](std::string_view name) { return has_constant(pipeline, name); };
    const Kind kind = kind_of(pipeline);
    const uint64_t slices = has("slices") ? of("slices") : 1;
    if (kind == Kind::arguments || kind == Kind::dsinks || kind == Kind::links) return {1, 1, 1};
    if (kind == Kind::delta || kind == Kind::combine)
        return {of("threads") / of("lanes") / (has("teams") ? of("teams") : 1), 1, 1};
    if (kind == Kind::spilled_bias) return {of("step_rows"), of("threads") * 8 / of("step_rows"), 1};
    if (has("tile_q")) return {of("tile_q"), of("tile_kv"), 1};
    if (has("subgroup_size")) {
        const uint64_t held = of("threads") / of("subgroup_size") * of("row_blocks") * of("matrix_m");
        if (has("tile_kv")) return {held, of("tile_kv"), slices};
        if (kind == Kind::dquery) return {held, of("walked"), slices};
        if (kind == Kind::dbias) return {held, of("walked") * of("chunks"), 1};
        if (kind == Kind::spilled) return {held / slices, of("walked"), 1};  // slices within a workgroup
        return {of("walked"), constant(pipeline, "paired") != 0 ? held / 2 : held, slices};
    }
    if (!has("cols")) return {of("rows"), of("threads"), 1};
    const Tile tile{of("threads") / of("lanes") * of("rows"), of("lanes") * of("cols"), slices};
    return kind == Kind::transposed ? Tile{tile.q, tile.q, 1} : tile;
}

uint64_t group_of(const Problem& p, const Pipeline& pipeline) {
    return has_constant(pipeline, "packed_heads") && constant(pipeline, "packed_heads") != 0
               ? p.num_heads_q / p.num_heads_kv
               : 1;
}

bool is_cut(const Pipeline& pipeline) {
    return core::constant_of(pipeline, "is_resumed") != 0;
}
bool is_cut(const core::Plan& plan) {
    return std::ranges::any_of(plan.pipelines, [](const Pipeline& x) { return is_cut(x); });
}

Parts parts_of(const Given& g) {
    Parts parts;
    if (g.backward != nullptr || g.combine != nullptr) return parts;
    for (const Pipeline& pipeline : g.plan.pipelines) {
        if (kind_of(pipeline) != Kind::forward || constant(pipeline, "is_split") == 0) continue;
        // Words 9 and 10 of operand_layout: lib/operand_layout.glsl.
        const std::vector<uint32_t> words = words_in(pipeline, "operand_layout");
        const uint64_t tile = tile_of(pipeline).kv;
        parts.span = words.at(10) * tile;
        parts.fixed_cuts = words.at(9) == 0;
        const Tiles keys = visible_keys(g.p);
        if (parts.span == 0 || keys.count() == 0) throw std::runtime_error("parts of no keys");
        const uint64_t origin = parts.fixed_cuts ? 0 : keys.begin / tile * tile;
        parts.first = parts.fixed_cuts ? keys.begin / parts.span : 0;
        parts.count = tiles_of(keys.end - origin, parts.span) - parts.first;
    }
    return parts;
}

core::Combine combine_of(const Given& g) {
    if (g.combine != nullptr) return *g.combine;
    core::Combine c{};
    const Problem& p = g.p;
    const uint64_t head = uint64_t{p.seqlen_q} * p.head_dim_v;
    c.dtype = p.out_dtype;
    c.parts_dtype = VKATTN_DTYPE_FLOAT32;
    c.num_parts = static_cast<uint32_t>(parts_of(g).count);
    c.batch = p.batch;
    c.num_heads = p.num_heads_q;
    c.seqlen_q = p.seqlen_q;
    c.head_dim_v = p.head_dim_v;
    c.part_stride = g.rows() * p.head_dim_v;
    c.parts_strides = {p.num_heads_q * head, head, p.head_dim_v};
    c.out_strides = p.out_strides;
    // Rows of a part begin at multiples of 16 bytes only where they are whole vec4.
    const uint32_t element = bytes_of(p.out_dtype);
    c.alignment_bytes = p.head_dim_v % 4 == 0 ? std::max(p.alignment_bytes, element) : 4;
    c.element_bytes = element;
    return c;
}

namespace {

// Places low .. high-1, held to from .. to-1, in tiles.
Tiles tiles_between(int64_t low, int64_t high, uint64_t from, uint64_t to, uint64_t tile) {
    const int64_t begin = std::max(static_cast<int64_t>(from), low),
                  end = std::min(static_cast<int64_t>(to), high);
    if (begin >= end) return {0, 0};
    return {static_cast<uint64_t>(begin) / tile, tiles_of(static_cast<uint64_t>(end), tile)};
}

// Where the bounds are the batch's own: `own` places of a tile and a band of known width, wherever it lies. It can
// begin with the last place of a tile.
Tiles most_tiles(const Problem& p, uint64_t own, uint64_t tile, uint64_t from, uint64_t to) {
    if (from >= to || own == 0) return {0, 0};
    const uint64_t all = tiles_of(to, tile) - from / tile;
    if (p.bound_lo == INT32_MIN || p.bound_hi == INT32_MAX) return {0, all};
    const int64_t band = int64_t{p.bound_hi} - p.bound_lo + 1;
    if (band <= 0) return {0, 0};
    return {0, std::min(all, (static_cast<uint64_t>(band) + own - 1 + tile - 2) / tile + 1)};
}

}  // namespace

Tiles key_tiles(const Problem& p, uint64_t first, uint64_t end, uint64_t tile, uint64_t from, uint64_t to) {
    to = std::min<uint64_t>(to, p.key_limit);
    if (first >= end) return {0, 0};
    if (p.dynamic_bounds) return most_tiles(p, end - first, tile, from, to);
    return tiles_between(static_cast<int64_t>(first) + p.bound_lo, static_cast<int64_t>(end) + p.bound_hi,
                         from, to, tile);
}

Tiles query_tiles(const Problem& p, uint64_t first, uint64_t end, uint64_t tile) {
    end = std::min<uint64_t>(end, p.key_limit);
    if (first >= end) return {0, 0};
    if (p.dynamic_bounds) return most_tiles(p, end - first, tile, 0, p.seqlen_q);
    return tiles_between(static_cast<int64_t>(first) - p.bound_hi, static_cast<int64_t>(end) - p.bound_lo, 0,
                         p.seqlen_q, tile);
}

Tiles visible_keys(const Problem& p) {
    if (p.seqlen_q == 0) return {0, 0};
    if (p.dynamic_bounds) return {0, p.key_limit};  // whatever the offsets come to
    return key_tiles(p, 0, p.seqlen_q, 1, 0, p.key_limit);
}

std::array<uint64_t, 3> mask_strides(const Problem& p) {
    if (p.mask == VKATTN_MASK_NONE) return {};
    return {p.mask_strides.batch, p.mask_strides.head, p.mask_strides.seq};
}

std::array<uint64_t, 4> mask_extents(const Problem& p) {
    std::array<uint64_t, 4> extents{1, 1, 1, 1};
    if (p.mask == VKATTN_MASK_NONE) return extents;  // rank and extents can be anything
    for (uint32_t i = 0; i < p.mask_rank; i++) extents[4 - p.mask_rank + i] = p.mask_extents[i];
    return extents;
}

std::array<uint64_t, 4> bias_extents(const Given& g) {
    return g.backward != nullptr && g.backward->dbias != 0 ? mask_extents(g.p) : std::array<uint64_t, 4>{};
}

// Tiles of all heads that share a class must read the same mask head, or the same ones.
uint64_t class_heads(const Problem& p, uint64_t group) {
    if (mask_strides(p)[1] == 0) return 1;
    const uint64_t of_mask = mask_extents(p)[1], of_tiles = p.num_heads_q / group;
    return of_tiles % of_mask == 0 ? of_mask : of_tiles;
}

uint64_t class_batches(const Problem& p) {
    return mask_strides(p)[0] != 0 ? p.batch : 1;
}

bool is_classified(const core::Plan& plan) {
    return std::ranges::any_of(plan.pipelines, [](const Pipeline& x) { return kind_of(x) == Kind::classes; });
}

const Pipeline* reader_of(const core::Plan& plan) {
    const auto reads = [](const Pipeline& x) { return kind_of(x) == Kind::spilled; };
    const auto found = std::ranges::find_if(plan.pipelines, reads);
    return found != plan.pipelines.end() ? &*found : nullptr;
}

Strip strip_of(const core::Plan& plan) {
    const Pipeline* const reader = reader_of(plan);
    if (reader == nullptr) return {};
    return {words_in(*reader, "spill_heads")[0], words_in(*reader, "spill_steps")[0]};
}

const Pipeline* links_of(const core::Plan& plan, const Pipeline& follower) {
    if (core::constant_of(follower, "has_links") == 0) return nullptr;
    // A forward has the address among its push constants, a backward has one for each pass in its argument block.
    const bool keys = kind_of(follower) == Kind::dkey_dvalue || kind_of(follower) == Kind::spilled;
    const size_t at = keys ? offsetof(shared::BackwardArguments, key_links)
                           : offsetof(shared::BackwardArguments, query_links);
    const core::Patch* address = nullptr;
    for (const core::Patch& patch :
         kind_of(follower) == Kind::forward ? follower.patches : plan.argument_patches)
        if (patch.region == Region::tile_links && (kind_of(follower) == Kind::forward || patch.at == at))
            address = &patch;
    for (const Pipeline& pipeline : plan.pipelines)
        if (address != nullptr && kind_of(pipeline) == Kind::links)
            if (const core::Patch* links = find_patch(pipeline, "links");
                links != nullptr && links->add == address->add)
                return &pipeline;
    return nullptr;
}

const Pipeline* follower_of(const core::Plan& plan, const Pipeline& links) {
    for (const Pipeline& pipeline : plan.pipelines)
        if (kind_of(pipeline) != Kind::links && links_of(plan, pipeline) == &links) return &pipeline;
    return nullptr;
}

uint32_t bytes_of(VkattnDtype dtype) {
    constexpr uint32_t bytes_of_block[] = {34, 18, 20, 22, 24, 18, 32, 32, 32};  // q8_0 to e5m2
    if (has_blocks(dtype)) return bytes_of_block[dtype - VKATTN_DTYPE_Q8_0];
    return dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
}

bool has_blocks(VkattnDtype dtype) {
    return dtype >= VKATTN_DTYPE_Q8_0;
}

VkattnDtype dtype_of(const Problem& p, Region region) {
    if (region == Region::key || region == Region::dkey) return p.key_dtype;
    if (region == Region::value || region == Region::dvalue) return p.value_dtype;
    return region == Region::out || region == Region::dout ? p.out_dtype : p.dtype;
}

VkattnDtype dtype_of_mask(const Problem& p) {
    return p.mask == VKATTN_MASK_FLOAT ? p.mask_dtype : p.dtype;
}

bool has_own_types(const Problem& p) {
    for (const VkattnDtype dtype : {p.key_dtype, p.value_dtype, p.out_dtype, dtype_of_mask(p)})
        if (dtype != p.dtype) return true;
    return false;
}

std::array<uint64_t, 3> stride_bytes(const VkattnStrides& s, VkattnDtype dtype) {
    const uint64_t bytes = bytes_of(dtype), elements = has_blocks(dtype) ? 32 : 1;
    return {s.batch / elements * bytes, s.head / elements * bytes, s.seq / elements * bytes};
}

const VkattnStrides& strides_of(const Given& g, Region region) {
    const std::pair<Region, const VkattnStrides*> forward[] = {{Region::query, &g.p.query_strides},
                                                               {Region::key, &g.p.key_strides},
                                                               {Region::value, &g.p.value_strides},
                                                               {Region::out, &g.p.out_strides}};
    for (const auto& [of, strides] : forward)
        if (of == region) return *strides;
    if (g.backward != nullptr) {
        const std::pair<Region, const VkattnStrides*> gradients[] = {
            {Region::dout, &g.backward->dout_strides},
            {Region::dquery, &g.backward->dquery_strides},
            {Region::dkey, &g.backward->dkey_strides},
            {Region::dvalue, &g.backward->dvalue_strides}};
        for (const auto& [of, strides] : gradients)
            if (of == region) return *strides;
    }
    throw std::runtime_error(fmt::format("{} has no strides", name_of(region)));
}

uint32_t head_dim_of(const Problem& p, Region region) {
    const bool qk = region == Region::query || region == Region::key || region == Region::dquery ||
                    region == Region::dkey;
    return qk ? p.head_dim_qk : p.head_dim_v;
}

bool needs_arguments(const Problem& p) {
    for (int t = 0; t < 4; t++)
        for (const uint64_t stride : stride_bytes(p.strides(t), p.dtype_of(t)))
            if (stride > UINT32_MAX) return true;
    return p.mask != VKATTN_MASK_NONE ||
           std::ranges::any_of(core::optional_arrays(p), &core::OptionalArray::asked);
}

namespace {

uint64_t hash(uint64_t x) {  // splitmix64
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

}  // namespace

uint64_t Cover::corners(const Triple& first, const Triple& count) {
    uint64_t sum = 0;
    for (const uint64_t x : {0, 1}) {
        const uint64_t at_x = hash(first[0] + x * count[0]);
        for (const uint64_t y : {0, 1}) {
            const uint64_t at_y = hash(at_x ^ (first[1] + y * count[1]));
            const uint64_t difference = hash(at_y ^ first[2]) - hash(at_y ^ (first[2] + count[2]));
            sum += x == y ? difference : 0 - difference;
        }
    }
    return sum;
}

}  // namespace vkattn::test
