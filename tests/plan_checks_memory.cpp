// What pipelines read and write, and how they find it: patches, argument block, scratch, barriers.
#include <algorithm>
#include <cstddef>
#include <set>

#include <fmt/format.h>

#include "plan/terms.hpp"
#include "plan_arrays.hpp"
#include "plan_checks.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::bit;
using core::Patch;
using core::Pipeline;
using core::Problem;
using core::Region;
using Block = shared::ForwardArguments;
using BackwardBlock = shared::BackwardArguments;

// Push constants that are addresses, and the regions that they may lead to.
const std::map<std::string_view, std::set<Region>>& address_fields() {
    static const std::map<std::string_view, std::set<Region>> fields{
        {"query", {Region::query, Region::dout}},
        {"key", {Region::key, Region::value}},
        {"value", {Region::value, Region::key, Region::dout, Region::query}},
        {"out_rows", {Region::out, Region::parts, Region::dquery, Region::dkey, Region::dvalue}},
        {"lse", {Region::lse, Region::parts_lse}},
        {"arguments", {Region::arguments}},
        {"operand_layout", {Region::arguments}},  // in place of the strides
        {"classes", {Region::mask_classes}},
        {"links", {Region::tile_links}},
        {"block_map", {Region::block_map}},
        {"parts", {Region::parts}},
        {"parts_lse", {Region::parts_lse}},
        {"scores", {Region::scores, Region::score_gradients}},
        {"weights", {Region::scores, Region::score_gradients}},
        {"score_gradients", {Region::score_gradients}},
        {"sinks", {Region::sinks}},
        {"spill", {Region::spill}},
    };
    return fields;
}

// Matrices that attention multiplies, and what comes of it: with all three addresses among the push constants.
bool is_product(Region left, Region right, Region result) {
    static const std::set<std::array<Region, 3>> products{
        {Region::query, Region::key, Region::scores},
        {Region::dout, Region::value, Region::score_gradients},
        {Region::scores, Region::value, Region::out},
        {Region::score_gradients, Region::key, Region::dquery},
        {Region::scores, Region::dout, Region::dvalue},
        {Region::score_gradients, Region::query, Region::dkey},
    };
    return products.count({left, right, result}) != 0;
}

// What the caller gives to a plan: it is read only.
bool is_given(const Given& g, Region region) {
    if (core::role_of(region) == core::Role::given) return true;
    if (g.combine != nullptr) return region == Region::parts || region == Region::parts_lse;
    return g.backward != nullptr && (region == Region::out || region == Region::lse);
}

// Bytes that results begin before their region: parts are addressed from the first key on, and scratch holds none
// before the first that exists.
uint64_t bytes_before(const Given& g, const Pipeline& pipeline, Region region) {
    if (kind_of(pipeline) == Kind::combine) return 0;
    const Parts parts = parts_of(g);
    const uint64_t rows = parts.span != 0 ? parts.first * g.rows() : 0;
    return region == Region::parts       ? rows * g.p.head_dim_v * 4
           : region == Region::parts_lse ? rows * bytes_of_statistics(g)
                                         : 0;
}

struct Touches {
    uint32_t reads = 0, writes = 0;
};

// The address of scales, in words 4 to 7 of operand_layout: lib/operand_layout.glsl.
bool is_of_scales(const Given& g, const Pipeline& pipeline, const Patch& patch) {
    const core::FieldInfo* const layout = find_field(pipeline, "operand_layout");
    if (layout == nullptr || patch.add != 0) return false;
    const Region of_value = g.p.value_in_key != 0 ? Region::key_scales : Region::value_scales;
    return (patch.region == Region::key_scales && patch.at == layout->offset_bytes + 16) ||
           (patch.region == of_value && patch.at == layout->offset_bytes + 24);
}

std::string patches_flaw(const Given& g, const Pipeline& pipeline, Touches& t) {
    const core::FieldInfo* const layout = find_field(pipeline, "operand_layout");
    for (const Patch& patch : pipeline.patches) {
        if (layout != nullptr && patch.at == layout->offset_bytes + 8 && patch.region == Region::tile_links &&
            patch.add == 0 && links_of(g.plan, pipeline) != nullptr)
            continue;  // see through_block
        if (is_of_scales(g, pipeline, patch)) {
            t.reads |= bit(patch.region) & given_arrays(g.p);
            continue;
        }
        const auto fields = core::info_of(pipeline.module.kernel).fields;
        const auto field =
            std::ranges::find_if(fields, [&](const auto& f) { return f.offset_bytes == patch.at; });
        if (field == fields.end()) return fmt::format("a patch at {}, where no field is", patch.at);
        const auto known = address_fields().find(field->name);
        if (known == address_fields().end() || known->second.count(patch.region) == 0)
            return fmt::format("{} with the address of {}", field->name, name_of(patch.region));
        if (&patch != find_patch(pipeline, field->name)) return fmt::format("two patches of {}", field->name);
        if (patch.region == Region::arguments) {
            t.reads |= bit(Region::arguments);
            continue;
        }
        if (patch.region != Region::tile_links && patch.add != 0 - bytes_before(g, pipeline, patch.region))
            return fmt::format("{} begins at {:#x}", field->name, patch.add);
        const bool result = field->name == "out_rows" || field->name == "lse" || field->name == "classes" ||
                            field->name == "links" || field->name == "scores" ||
                            field->name == "score_gradients" ||
                            (field->name == "spill" && kind_of(pipeline) == Kind::dkey_dvalue);
        (result && !is_given(g, patch.region) ? t.writes : t.reads) |= bit(patch.region);
    }
    if (kind_of(pipeline) == Kind::forward)
        for (const Region region : {Region::key_scales, Region::value_scales}) {
            const bool of_key = region == Region::key_scales, in_key = g.p.value_in_key != 0;
            const int key = g.p.key_scales != VKATTN_SCALES_NONE,
                      value = g.p.value_scales != VKATTN_SCALES_NONE;
            if (std::ranges::count(pipeline.patches, region, &Patch::region) !=
                (of_key   ? (in_key ? 2 * key : key)
                 : in_key ? 0
                          : value))
                return fmt::format("not one address of {}", name_of(region));
        }
    for (const auto& [name, regions] : address_fields()) {
        if (find_field(pipeline, name) == nullptr || find_patch(pipeline, name) != nullptr) continue;
        // Without an address the lse of a baseline's backward is not written.
        const bool absent = name == "operand_layout" ? constant(pipeline, "has_arguments") == 0
                            : name == "sinks"        ? g.combine == nullptr && g.p.sinks == 0
                            : name == "spill"        ? core::constant_of(pipeline, "spilled_rows") == 0
                                                     : name == "lse" && g.backward != nullptr;
        if (!absent) return fmt::format("no address in {}", name);
    }
    return "";
}

// The fields of one pipeline belong together.
std::string operands_flaw(const Given& g, const Pipeline& pipeline) {
    const auto region = [&](std::string_view field) {
        const Patch* patch = find_patch(pipeline, field);
        return patch != nullptr ? patch->region : Region::count;
    };
    const Kind kind = kind_of(pipeline);
    const Region value = g.p.value_in_key != 0 ? Region::key : Region::value;
    bool fits = true;
    if (kind == Kind::scores) fits = is_product(region("query"), region("key"), region("scores"));
    if (kind == Kind::product || kind == Kind::transposed)
        fits = is_product(region("weights"), region("value"), region("out_rows"));
    if (kind == Kind::in_place)
        fits = region("scores") == Region::scores || region("weights") == Region::scores;
    if (kind == Kind::forward || walks(kind))
        fits = region("query") == Region::query && region("key") == Region::key && region("value") == value;
    if (kind == Kind::forward || kind == Kind::combine || kind == Kind::delta) {
        const bool split = kind == Kind::forward && constant(pipeline, "is_split") != 0;
        fits = fits && region("out_rows") == (split ? Region::parts : Region::out);
        if (kind != Kind::delta) fits = fits && region("lse") == (split ? Region::parts_lse : Region::lse);
    }
    return fits ? "" : "addresses that do not belong together";
}

uint32_t if_set(bool wanted, Region region) {
    return wanted ? bit(region) : 0;
}

// What a pipeline reaches through the addresses in the argument block. Whoever is given query, key and value sees
// scores, and so mask, lengths and classes; in a backward dout and the rows' statistics, too.
Touches through_block(const Given& g, const Pipeline& pipeline, uint32_t& may_read) {
    const Kind kind = kind_of(pipeline);
    const Problem& p = g.p;
    const uint32_t mask = if_set(p.mask != VKATTN_MASK_NONE, Region::mask);
    const bool dlse = g.backward != nullptr && g.backward->dlse != 0;
    Touches t;
    if (kind == Kind::classes || kind == Kind::delta || kind == Kind::dsinks) may_read = given_arrays(p);
    if (kind == Kind::classes) t.reads = mask;
    if (kind == Kind::forward || walks(kind))
        t.reads = mask | given_arrays(p) | if_set(is_classified(g.plan), Region::mask_classes);
    t.reads |= if_set(links_of(g.plan, pipeline) != nullptr, Region::tile_links);
    if (kind == Kind::spilled) {
        t.reads |= bit(Region::tile_states);
        t.writes = bit(Region::dquery) | if_set(skips_tiles(p), Region::tile_states);
    } else if (walks(kind)) {
        t.reads |= bit(Region::dout) | if_set(g.rows() != 0, Region::statistics);
    }
    // The portable gradient of the mask also sums what comes of lse.
    if (kind == Kind::delta || (kind == Kind::dbias && !on_matrices(pipeline)))
        t.reads |= bit(Region::lse) | bit(Region::dout) | if_set(dlse, Region::dlse);
    if (kind == Kind::delta) t.writes = bit(Region::statistics);
    if (kind == Kind::dquery && on_matrices(pipeline)) t.reads |= if_set(dlse, Region::dlse);
    // A number of each row's statistics is the result of its last key.
    if (kind == Kind::dquery) {
        const uint32_t tiles = has_constant(pipeline, "tiles") ? constant(pipeline, "tiles") : TILES_ALL;
        t.writes =
            bit(Region::dquery) | bit(Region::statistics) | if_set(tiles == TILE_ODD, Region::tile_states);
        t.reads |= if_set(tiles == TILE_NONFINITE, Region::tile_states);
    }
    if (kind == Kind::spilled_bias) t.reads |= given_arrays(p);
    if (kind == Kind::dbias || kind == Kind::spilled_bias) t.writes = bit(Region::dbias);
    if (kind == Kind::dsinks) {
        t.reads |= if_set(g.rows() != 0, Region::statistics);
        t.writes = bit(Region::dsinks);
    }
    // With sinks and a mask, the lse does not tell which rows see no key.
    if (kind == Kind::delta && p.sinks != 0) t.reads |= mask;
    if (kind == Kind::dkey_dvalue) {
        const uint32_t gradients = has_constant(pipeline, "gradients") ? constant(pipeline, "gradients") : 3;
        t.writes = if_set((gradients & 1) != 0, Region::dvalue) | if_set((gradients & 2) != 0, Region::dkey);
    }
    if (is_cut(pipeline)) {
        t.reads |= bit(Region::accumulators);
        t.writes |= bit(Region::accumulators);
    }
    if (kind == Kind::in_place) {
        t.reads |= bit(Region::scores);
        if (find_field(pipeline, "score_gradients") != nullptr)
            t.reads |= bit(Region::score_gradients) | bit(Region::statistics);
    }
    return t;
}

// A dispatch that writes a part of the argument block has its bytes and patches, and nothing else.
std::string argument_part_flaw(const Given& g, const Pipeline& pipeline) {
    const Patch* const block = find_patch(pipeline, "block");
    if (block == nullptr || block->region != Region::arguments || pipeline.reads != 0 ||
        pipeline.writes != bit(Region::arguments))
        return "not a part of the argument block";
    const uint32_t words = find_field(pipeline, "words")->offset_bytes;
    const uint64_t first = block->add, size = g.plan.arguments.size();
    if (first % ARGUMENT_PART_BYTES != 0 || first >= size) return "a part at no place of the block";
    const uint64_t end = std::min<uint64_t>(size, first + ARGUMENT_PART_BYTES);
    core::PushBytes wanted{};
    std::memcpy(wanted.data() + words, g.plan.arguments.data() + first, end - first);
    if (pipeline.push != wanted || pipeline.module.has(core::macros::ROLLED))
        return "not the bytes of the block";
    std::vector<Patch> patches;
    for (const Patch& patch : g.plan.argument_patches)
        if (patch.at >= first && patch.at < end)
            patches.push_back({static_cast<uint32_t>(words + patch.at - first), patch.region, patch.add});
    patches.insert(patches.begin(), *block);
    return patches == pipeline.patches ? "" : "other patches than the block has";
}

}  // namespace

std::string touches_flaw(const Given& g, const Pipeline& pipeline) {
    if (kind_of(pipeline) == Kind::arguments) return argument_part_flaw(g, pipeline);
    Touches t;
    std::string flaw = patches_flaw(g, pipeline, t);
    if (flaw.empty()) flaw = operands_flaw(g, pipeline);
    if (!flaw.empty()) return fmt::format("{}: {}", name_of(pipeline), flaw);
    uint32_t may_read = 0;
    const Touches more = through_block(g, pipeline, may_read);
    t.reads |= more.reads;
    t.writes |= more.writes;
    if (kind_of(pipeline) == Kind::spilled)  // which multiplies dS by keys alone
        t.reads &= ~(bit(Region::query) | bit(Region::value));
    if (pipeline.writes != t.writes)
        return fmt::format("{} writes {:#x}, the shader {:#x}", name_of(pipeline), pipeline.writes, t.writes);
    if ((pipeline.reads & ~may_read) != t.reads)
        return fmt::format("{} reads {:#x}, the shader {:#x}", name_of(pipeline), pipeline.reads, t.reads);
    return "";
}

uint64_t block_of(const Pipeline& pipeline) {
    for (const std::string_view name : {"arguments", "operand_layout"})
        if (const Patch* patch = find_patch(pipeline, name); patch != nullptr) return patch->add;
    return 0;
}

namespace {

// Strides in a block: of the tensors whose addresses the pipelines that read it have, else of those that have these
// places in a forward.
std::string strides_flaw(const Given& g, const Block& block, uint64_t at) {
    constexpr std::pair<std::string_view, Region> places[] = {
        {"query", Region::query}, {"key", Region::key}, {"value", Region::value}, {"out_rows", Region::out}};
    std::vector<const Pipeline*> readers;
    for (const Pipeline& pipeline : g.plan.pipelines)
        if ((pipeline.reads & bit(Region::arguments)) != 0 && block_of(pipeline) == at)
            readers.push_back(&pipeline);
    if (readers.empty()) return fmt::format("nothing reads the block at {}", at);
    for (const Pipeline* reader : readers)
        for (size_t t = 0; t < 4; t++) {
            const Patch* const patch = find_patch(*reader, places[t].first);
            const bool own = patch != nullptr && patch->region != Region::parts;
            const Region region = own ? patch->region : places[t].second;
            const auto wanted = stride_bytes(strides_of(g, region), dtype_of(g.p, region));
            if (!std::equal(wanted.begin(), wanted.end(), block.stride + 3 * t))
                return fmt::format("strides of {} for {}", places[t].first, name_of(*reader));
        }
    return "";
}

std::string forward_block_flaw(const Given& g, const Block& a) {
    const Problem& p = g.p;
    const auto mask = mask_strides(p);
    if (!std::equal(mask.begin(), mask.end(), a.mask_stride)) return "mask strides";
    if (a.mask != 0 || a.classes != 0) return "an address in the argument block";
    const bool classified = is_classified(g.plan);
    uint32_t present = classified ? shared::PRESENT_CLASSES : 0;
    for (const core::OptionalArray& array : core::optional_arrays(p)) {
        uint64_t address = 0;
        if (array.at) std::memcpy(&address, reinterpret_cast<const char*>(&a) + *array.at, sizeof address);
        if (address != 0) return "an address in the argument block";
        present |= array.given ? array.present_bit : 0;
    }
    if (a.present != present) return "what is present";
    const uint64_t keys = mask_extents(p)[3];
    const bool masked = p.mask != VKATTN_MASK_NONE;
    if (a.key_limit != (masked && keys != 1 ? keys : p.seqlen_kv)) return "key_limit";
    if (a.mask_key_step != (masked && keys != 1)) return "mask_key_step";
    if (a.follow_lengths != (p.kv_lengths != 0 && p.align == VKATTN_ALIGN_BOTTOM_RIGHT))
        return "follow_lengths";
    const int64_t keys_before = p.kv_lengths != 0 ? 0 : p.seqlen_kv,
                  position = p.align == VKATTN_ALIGN_BOTTOM_RIGHT ? keys_before - p.seqlen_q
                             : p.align == VKATTN_ALIGN_OFFSET     ? p.query_offset
                                                                  : 0;
    if (a.position != std::clamp<int64_t>(position, INT32_MIN, INT32_MAX)) return "position";
    if (a.slopes_per_batch != (p.slopes == VKATTN_SLOPES_PER_BATCH)) return "slopes_per_batch";
    if (a.mask_group_size * mask_extents(p)[1] != (masked ? p.num_heads_q : 1)) return "mask_group_size";
    uint64_t heads = 1, batches = 1;
    for (const Pipeline& pipeline : g.plan.pipelines) {
        if (kind_of(pipeline) != Kind::classes) continue;
        heads = class_heads(p, group_of(p, pipeline));
        batches = class_batches(p);
    }
    for (const Pipeline& pipeline : g.plan.pipelines)
        if (links_of(g.plan, pipeline) != nullptr) {
            heads = constant(pipeline, "packed_heads") != 0 ? p.num_heads_kv : p.block_map_heads;
            batches = p.block_map_batches;
        }
    if (a.class_heads != heads || a.class_batches != batches) return "heads or batches of classes";
    if (a.block_rows != p.block_rows || a.block_keys != p.block_keys) return "block_rows or block_keys";
    if ((a.maps & 0xffff) != p.block_map_heads || (a.maps >> 16 != 0) != (p.block_map_batches != 1))
        return "maps";
    return "";
}

std::string backward_block_flaw(const Given& g, const BackwardBlock& a) {
    constexpr Region order[] = {Region::dout, Region::dquery, Region::dkey, Region::dvalue};
    for (size_t t = 0; t < 4; t++) {
        const auto wanted = stride_bytes(strides_of(g, order[t]), dtype_of(g.p, order[t]));
        if (!std::equal(wanted.begin(), wanted.end(), a.stride + 3 * t))
            return fmt::format("strides of {}", t);
    }
    if ((a.dout | a.lse | a.dlse | a.dquery | a.dkey | a.dvalue | a.dbias | a.dsinks | a.statistics |
         a.accumulators | a.query_links | a.key_links | a.tile_states) != 0)
        return "an address in the argument block";
    if (a.scale != g.p.softmax_scale || a.batch != g.p.batch) return "scale or batch";
    const auto bias = bias_extents(g);
    return a.dbias_batches == bias[0] && a.dbias_heads == bias[1] && a.dbias_queries == bias[2] &&
                   a.dbias_keys == bias[3]
               ? ""
               : "extents of dbias";
}

uint64_t bytes_of_links(const core::Plan& plan, const core::Dispatch& d) {
    const Pipeline& pipeline = pipeline_of(plan, d);
    const uint64_t tiles =
        tiles_of(words_in(pipeline, "walked_rows").front(), words_in(pipeline, "walked_tile").front());
    return uint64_t{4} * d.groups[0] * d.groups[1] * tiles;
}

// Addresses that a ForwardArguments has, which begins at `at`. What is absent is loaded from the block itself.
void add_forward_patches(const Given& g, size_t at, std::vector<Patch>& to) {
    const auto add = [&](size_t offset, Region region) {
        to.push_back({static_cast<uint32_t>(at + offset), region});
    };
    if (g.p.mask != VKATTN_MASK_NONE) add(offsetof(Block, mask), Region::mask);
    add(offsetof(Block, classes), is_classified(g.plan) ? Region::mask_classes : Region::arguments);
    for (const core::OptionalArray& array : core::optional_arrays(g.p))
        if (array.at) add(*array.at, array.given ? array.region : Region::arguments);
}

void add_backward_patches(const Given& g, std::vector<Patch>& to) {
    const auto add = [&](bool wanted, size_t at, Region region) {
        if (wanted) to.push_back({static_cast<uint32_t>(at), region});
    };
    add(true, offsetof(BackwardBlock, dout), Region::dout);
    add(true, offsetof(BackwardBlock, lse), Region::lse);
    add(g.backward->dlse != 0, offsetof(BackwardBlock, dlse), Region::dlse);
    add(true, offsetof(BackwardBlock, dquery), Region::dquery);
    add(true, offsetof(BackwardBlock, dkey), Region::dkey);
    add(true, offsetof(BackwardBlock, dvalue), Region::dvalue);
    add(g.backward->dbias != 0, offsetof(BackwardBlock, dbias), Region::dbias);
    add(g.backward->dsinks != 0, offsetof(BackwardBlock, dsinks), Region::dsinks);
    add(g.rows() != 0, offsetof(BackwardBlock, statistics), Region::statistics);
    add(is_cut(g.plan), offsetof(BackwardBlock, accumulators), Region::accumulators);
    add(reader_of(g.plan) != nullptr, offsetof(BackwardBlock, tile_states), Region::tile_states);
    // Those for the keys lie behind those for the queries.
    uint64_t begin = 0;
    for (const Kind kind : {Kind::dquery, Kind::dkey_dvalue})
        for (const core::Dispatch& d : g.plan.dispatches) {
            const Pipeline& pipeline = pipeline_of(g.plan, d);
            const Pipeline* follower =
                kind_of(pipeline) == Kind::links ? follower_of(g.plan, pipeline) : nullptr;
            if (follower == nullptr || kind_of(*follower) != kind) continue;
            const size_t at = kind == Kind::dquery ? offsetof(BackwardBlock, query_links)
                                                   : offsetof(BackwardBlock, key_links);
            to.push_back({static_cast<uint32_t>(at), Region::tile_links, begin});
            begin += bytes_of_links(g.plan, d);
        }
}

std::string block_patches_flaw(const std::vector<Patch>& patches, const std::vector<Patch>& expected) {
    if (patches.size() != expected.size())
        return fmt::format("argument block: {} patches, not {}", patches.size(), expected.size());
    for (const Patch& e : expected)
        if (std::ranges::none_of(patches, [&](const Patch& x) {
                return x.at == e.at && x.region == e.region && x.add == e.add;
            }))
            return fmt::format("argument block: no patch of {} at {}", name_of(e.region), e.at);
    return "";
}

}  // namespace

// One block of the plan's kind, and behind a backward's any number of a forward's, each for some pipeline.
std::string arguments_flaw(const Given& g) {
    const bool backward = g.backward != nullptr;
    const size_t first = backward ? sizeof(BackwardBlock) : needs_arguments(g.p) ? sizeof(Block) : 0;
    const std::vector<std::byte>& bytes = g.plan.arguments;
    if (bytes.size() < first || (bytes.size() - first) % sizeof(Block) != 0 ||
        (!backward && bytes.size() != first))
        return fmt::format("an argument block of {} bytes", bytes.size());
    std::vector<Patch> patches;
    std::vector<size_t> blocks;
    if (first != 0) blocks.push_back(0);
    for (size_t at = first; at < bytes.size(); at += sizeof(Block)) blocks.push_back(at);
    for (const size_t at : blocks) {
        Block block;
        std::memcpy(&block, bytes.data() + at, sizeof block);
        add_forward_patches(g, at, patches);
        for (const auto& flaw : {forward_block_flaw(g, block), strides_flaw(g, block, at)})
            if (!flaw.empty()) return "argument block: " + flaw;
    }
    for (const Pipeline& pipeline : g.plan.pipelines)
        if (std::ranges::find(blocks, block_of(pipeline)) == blocks.end() && first != 0)
            return fmt::format("{} reads no block", name_of(pipeline));
    if (backward) {
        BackwardBlock block;
        std::memcpy(&block, bytes.data(), sizeof block);
        add_backward_patches(g, patches);
        if (auto flaw = backward_block_flaw(g, block); !flaw.empty()) return "argument block: " + flaw;
    }
    return block_patches_flaw(g.plan.argument_patches, patches);
}

namespace {

// Bytes of the accumulators that a pass keeps between dispatches. On matrix units every invocation keeps its elements
// of every matrix: that of dquery and row sums of as many elements as a matrix has, or those of dkey and dvalue, both
// also where a pass has one, but for pairs of subgroups (lib/backward_matrix_results.glsl). Else float32 in vec4, as
// many for every invocation that shares a row.
uint64_t kept_bytes(const Given& g, const Pipeline& pipeline) {
    const auto of = [&](const char* name) { return divisor(pipeline, name); };
    const Problem& p = g.p;
    const Tile t = tile_of(pipeline);
    const bool of_queries = kind_of(pipeline) == Kind::dquery;
    if (on_matrices(pipeline)) {
        const auto matrices_of = [&](uint64_t head_dim) {
            return tiles_of(head_dim, of("matrix_n") * t.slices);
        };
        uint64_t matrices = matrices_of(p.head_dim_qk);
        if (of_queries)
            matrices++;
        else if (constant(pipeline, "paired") == 0)
            matrices += matrices_of(p.head_dim_v);
        const uint64_t heads = writes(pipeline, Region::spill) ? strip_of(g.plan).heads : g.key_heads();
        const uint64_t workgroups =
            (of_queries ? g.heads() * tiles_of(p.seqlen_q, t.q) : heads * tiles_of(p.seqlen_kv, t.kv)) *
            t.slices;
        return workgroups * of("threads") * of("row_blocks") * matrices *
               (of("matrix_m") * of("matrix_n") / of("subgroup_size")) * 4;
    }
    const auto row = [](uint64_t head_dim, uint64_t lanes) { return round_up(head_dim, 4 * lanes) * 4; };
    if (of_queries) return g.rows() * row(p.head_dim_qk, of("lanes") * t.slices);
    const uint64_t lanes = of("threads") / (t.kv / of("rows")), keys = g.key_heads() * p.seqlen_kv;
    if (t.slices != 1) return keys * 2 * row(std::max(p.head_dim_qk, p.head_dim_v), lanes * (t.slices / 2));
    return keys * (row(p.head_dim_qk, lanes) + row(p.head_dim_v, lanes));
}

// Bytes that the dispatches use of a region.
uint64_t bytes_used(const Given& g, Region region) {
    uint64_t most = 0;
    const Parts parts = parts_of(g);
    switch (region) {
        case Region::arguments:
            return round_up(g.plan.arguments.size(), ARGUMENT_PART_BYTES);
        case Region::statistics:
            return g.rows() * 4 * sizeof(float);
        case Region::parts:
            return parts.count * g.rows() * g.p.head_dim_v * 4;
        case Region::parts_lse:
            return parts.count * g.rows() * bytes_of_statistics(g);
        case Region::mask_classes:
            for (const core::Dispatch& d : g.plan.dispatches)
                if (kind_of(g.plan, d) == Kind::classes)
                    most += uint64_t{4} * d.groups[0] * d.groups[1] * d.groups[2];
            return most;
        case Region::tile_links:
            for (const core::Dispatch& d : g.plan.dispatches)
                if (kind_of(g.plan, d) == Kind::links) most += bytes_of_links(g.plan, d);
            return most;
        case Region::spill:
            for (const Pipeline& pipeline : g.plan.pipelines)
                if (const Tile t = tile_of(pipeline); writes(pipeline, Region::spill))
                    most = t.q * round_up(g.p.seqlen_kv, t.kv) * 2;  // a step
            return strip_of(g.plan).heads * strip_of(g.plan).steps * most;
        case Region::tile_states:
            for (const Pipeline& pipeline : g.plan.pipelines)
                if (kind_of(pipeline) == Kind::dquery)
                    most = 4 * g.heads() * tiles_of(g.p.seqlen_q, tile_of(pipeline).q);
            return most;
        case Region::accumulators:  // passes follow each other, so that they share it
            for (const Pipeline& pipeline : g.plan.pipelines)
                if (is_cut(pipeline)) most = std::max(most, kept_bytes(g, pipeline));
            return most;
        default:  // matrices of heads; a workgroup of dkey and dvalue has those of a group
            for (const core::Dispatch& d : g.plan.dispatches) {
                const Kind kind = kind_of(g.plan, d);
                if (kind == Kind::in_place || kind == Kind::product)
                    most = std::max<uint64_t>(most, d.groups[0]);
                if (kind == Kind::transposed)
                    most = std::max(most, uint64_t{d.groups[0]} * (g.p.num_heads_q / g.p.num_heads_kv));
            }
            return most * matrix_bytes(g.p);
    }
}

constexpr uint32_t scratch_regions =
    bit(Region::arguments) | bit(Region::scores) | bit(Region::mask_classes) | bit(Region::tile_links) |
    bit(Region::parts) | bit(Region::parts_lse) | bit(Region::statistics) | bit(Region::accumulators) |
    bit(Region::score_gradients) | bit(Region::spill) | bit(Region::tile_states);

}  // namespace

std::string scratch_flaw(const Given& g) {
    uint64_t end = 0;
    uint32_t there = 0, used = 0;
    for (const core::ScratchRegion& r : g.plan.scratch) {
        if (r.offset_bytes % core::scratch_alignment != 0)
            return fmt::format("{} misaligned", name_of(r.region));
        if (r.offset_bytes != end)
            return fmt::format("{} at {}, not at {}", name_of(r.region), r.offset_bytes, end);
        if (r.size_bytes == 0 || (there & bit(r.region)) != 0)
            return fmt::format("{} empty or twice", name_of(r.region));
        if (const uint64_t bytes = bytes_used(g, r.region); r.size_bytes != bytes)
            return fmt::format("{} of {} bytes, {} are used", name_of(r.region), r.size_bytes, bytes);
        const bool is_spared = r.region == Region::mask_classes || r.region == Region::tile_links;
        if (is_spared && r.size_bytes > uint64_t{256} << 20) return "more classes or links than 256 MiB";
        there |= bit(r.region);
        end = round_up(r.offset_bytes + r.size_bytes, core::scratch_alignment);
    }
    if (g.plan.scratch_bytes != end)
        return fmt::format("{} scratch bytes, regions end at {}", g.plan.scratch_bytes, end);
    if (end > g.caps.max_buffer_bytes) return fmt::format("{} bytes of scratch", end);
    const bool is_limited = g.backward == nullptr || reader_of(g.plan) != nullptr;
    if (g.options.max_scratch_bytes != 0 && is_limited && end > g.options.max_scratch_bytes &&
        there != bit(Region::arguments))
        return fmt::format("{} bytes of scratch, the limit is {}", end, g.options.max_scratch_bytes);
    for (const core::Dispatch& d : g.plan.dispatches)
        used |= (pipeline_of(g.plan, d).reads | pipeline_of(g.plan, d).writes) & scratch_regions;
    if (g.combine != nullptr) used = 0;  // whose parts are the caller's
    return used == there ? "" : fmt::format("regions {:#x} are used, {:#x} reserved", used, there);
}

std::string barrier_flaw(const core::Plan& plan) {
    const std::vector<core::Dispatch>& all = plan.dispatches;
    // No two dispatches write the same element of these, so two writers do not wait for each other.
    const uint32_t outputs = bit(Region::out) | bit(Region::lse) | bit(Region::parts) |
                             bit(Region::parts_lse) | bit(Region::mask_classes) | bit(Region::tile_links) |
                             bit(Region::dquery) | bit(Region::dkey) | bit(Region::dvalue) |
                             bit(Region::dbias) | bit(Region::dsinks) | bit(Region::statistics) |
                             bit(Region::arguments) | bit(Region::spill) | bit(Region::decoded);
    struct Run {
        uint32_t reads = 0, writes = 0;
    } before, run;  // unions depend on a dispatch just if one of theirs does
    const auto depends = [](const Run& a, const Pipeline& b) {
        return (a.writes & (b.reads | (b.writes & ~outputs))) != 0 || (a.reads & b.writes) != 0;
    };
    if (!all.empty() && all[0].barrier_before) return "a barrier before the first dispatch";
    bool separates = true;
    for (size_t i = 0; i < all.size(); i++) {
        const core::Dispatch& d = all[i];
        if (d.barrier_before) {
            if (!separates)
                return fmt::format("the barrier before the run that ends at {} separates nothing", i);
            before = run;
            run = {};
            separates = false;
        }
        const Pipeline& pipeline = pipeline_of(plan, d);
        if (depends(run, pipeline)) return fmt::format("no barrier before dispatch {}", i);
        separates = separates || depends(before, pipeline);
        run.reads |= pipeline.reads;
        run.writes |= pipeline.writes;
    }
    return separates ? "" : "the last barrier separates nothing";
}

}  // namespace vkattn::test
