// What the dispatches are told, and what they touch: push constants, argument block, scratch, barriers.
#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

#include "plan_checks.hpp"
#include "plan_model.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::bit;
using core::DeviceCaps;
using core::Dispatch;
using core::Patch;
using core::Pipeline;
using core::Plan;
using core::Problem;
using core::Region;
using Arguments = shared::ForwardArguments;

constexpr uint32_t scratch_regions = bit(Region::arguments) | bit(Region::scores) |
                                     bit(Region::mask_classes) | bit(Region::parts) | bit(Region::parts_lse) |
                                     bit(Region::statistics) | bit(Region::accumulators) |
                                     bit(Region::score_gradients);

void touch_forward(const Problem& p, const Model& m, Touches& t) {
    t.reads_at("query", Region::query);
    t.reads_at("key", Region::key);
    t.reads_at("value", Region::value);
    // Parts are addressed from the first key on; scratch holds none before the first that exists.
    const uint64_t before = m.span != 0 ? m.first_part * m.rows : 0;
    t.writes_at("out_rows", m.span != 0 ? Region::parts : Region::out, 0 - before * p.head_dim_v * 4);
    t.writes_at("lse", m.span != 0 ? Region::parts_lse : Region::lse, 0 - before * 8);
    if (p.mask != VKATTN_MASK_NONE) t.reads |= bit(Region::mask);
    if (m.classified) t.reads |= bit(Region::mask_classes);
}

Touches touches_of(const Problem& p, const Model& m, const Pipeline& pipeline) {
    Touches t(pipeline);
    const uint32_t of_batch =
        (p.kv_lengths != 0 && p.batch != 0 ? bit(Region::kv_lengths) : 0) |
        (p.align == VKATTN_ALIGN_OFFSETS && p.batch != 0 ? bit(Region::query_offsets) : 0);
    if (needs_arguments(p)) t.reads_arguments();
    switch (kind_of(pipeline)) {
        case Kind::forward:
            touch_forward(p, m, t);
            t.reads |= of_batch;
            break;
        case Kind::classes:
            t.reads |= bit(Region::mask);
            t.may_read = of_batch;
            t.writes_at("classes", Region::mask_classes);
            break;
        case Kind::scores:
            t.reads_at("query", Region::query);
            t.reads_at("key", Region::key);
            t.writes_at("scores", Region::scores);
            break;
        case Kind::softmax:
            t.reads |= bit(Region::scores);
            t.writes_at("scores", Region::scores);
            t.writes_at("lse", Region::lse);
            break;
        case Kind::output:
            t.reads_at("weights", Region::scores);
            t.reads_at("value", Region::value);
            t.writes_at("out_rows", Region::out);
            break;
        default:  // combine_flaw, backward_flaw
            break;
    }
    return t;
}

}  // namespace

std::string push_flaw(const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    for (const Pipeline& pipeline : plan.pipelines) {
        if (kind_of(pipeline) == Kind::combine) continue;  // combine_flaw
        Words words = words_of(p, pipeline);
        words["operand_layout"] = layout_words(p, needs_arguments(p));
        if (kind_of(pipeline) == Kind::forward && m.span != 0) {
            words["operand_layout"][10] = static_cast<uint32_t>(m.span / m.tile_kv);
            words["operand_layout"][11] = p.batch * p.num_heads_q;
        }
        for (const auto& flaw :
             {words_flaw(pipeline, words), touches_flaw(touches_of(p, m, pipeline), pipeline)})
            if (!flaw.empty()) return flaw;
    }
    return "";
}

namespace {

// Bytes that the dispatches use of a region.
uint64_t bytes_used(const Problem& p, const Plan& plan, const Model& m, Region region) {
    uint64_t most = 0;
    switch (region) {
        case Region::arguments:
            return sizeof(Arguments);
        case Region::scores:
            for (const Dispatch& d : plan.dispatches) most = std::max<uint64_t>(most, d.groups[0]);
            return most * matrix_bytes(p);
        case Region::mask_classes:
            return masks_of(p, m) * m.query_tiles * m.key_tiles * 4;
        case Region::parts:
            return m.parts * m.rows * p.head_dim_v * 4;
        case Region::parts_lse:
            return m.parts * m.rows * 8;  // row_max and row_sum
        default:
            return 0;
    }
}

}  // namespace

std::string scratch_flaw(const DeviceCaps& caps, const Problem& p, const Plan& plan) {
    const Model m = model_of(p, plan);
    return regions_flaw(caps, plan, [&](Region region) { return bytes_used(p, plan, m, region); });
}

std::string regions_flaw(const DeviceCaps& caps, const Plan& plan,
                         const std::function<uint64_t(Region)>& bytes_used) {
    uint64_t end = 0;
    uint32_t there = 0, used = 0;
    for (const core::ScratchRegion& r : plan.scratch) {
        if (r.offset_bytes % core::scratch_alignment != 0)
            return fmt::format("{} misaligned", name_of(r.region));
        if (r.offset_bytes != end)
            return fmt::format("{} at {}, not at {}", name_of(r.region), r.offset_bytes, end);
        if (r.size_bytes == 0 || (there & bit(r.region)) != 0)
            return fmt::format("{} empty or twice", name_of(r.region));
        if (r.size_bytes != bytes_used(r.region))
            return fmt::format("{} of {} bytes, {} are used", name_of(r.region), r.size_bytes,
                               bytes_used(r.region));
        there |= bit(r.region);
        end = round_up(r.offset_bytes + r.size_bytes, core::scratch_alignment);
    }
    if (plan.scratch_bytes != end)
        return fmt::format("{} scratch bytes, regions end at {}", plan.scratch_bytes, end);
    if (plan.scratch_bytes > caps.max_buffer_bytes)
        return fmt::format("{} bytes of scratch", plan.scratch_bytes);
    for (const Dispatch& d : plan.dispatches) {
        const Pipeline& pipeline = pipeline_of(plan, d);
        used |= (pipeline.reads | pipeline.writes) & scratch_regions;
    }
    if (used != there) return fmt::format("regions {:#x} are used, {:#x} reserved", used, there);
    return "";
}

std::string arguments_flaw(const Problem& p, const Plan& plan) {
    const bool wanted = needs_arguments(p) && !p.empty_output();
    if (plan.arguments.size() != (wanted ? sizeof(Arguments) : 0)) return "argument block";
    if (!wanted) return plan.argument_patches.empty() ? "" : "patches of no argument block";
    const Model m = model_of(p, plan);
    Arguments a;
    std::memcpy(&a, plan.arguments.data(), sizeof a);
    if (const std::string flaw = arguments_flaw(p, m, a); !flaw.empty()) return flaw;
    const std::string flaw = patch_flaw(plan.argument_patches, argument_patches(p, m));
    return flaw.empty() ? "" : "argument block: " + flaw;
}

std::string arguments_flaw(const Problem& p, const Model& m, const Arguments& a) {
    const auto strides = stride_bytes(p);
    const auto mask = mask_strides(p);
    if (!std::equal(strides.begin(), strides.end(), a.stride)) return "strides in the argument block";
    if (!std::equal(mask.begin(), mask.end(), a.mask_stride)) return "mask strides";
    if (a.mask != 0 || a.classes != 0 || a.kv_lengths != 0 || a.query_offsets != 0)
        return "an address in the argument block";
    const uint32_t present = (m.classified ? PRESENT_CLASSES : 0) |
                             (p.kv_lengths != 0 && p.batch != 0 ? PRESENT_KV_LENGTHS : 0) |
                             (p.align == VKATTN_ALIGN_OFFSETS && p.batch != 0 ? PRESENT_QUERY_OFFSETS : 0);
    if (a.present != present) return "what is present";
    const uint64_t keys = mask_extents(p)[3];
    const bool masked = p.mask != VKATTN_MASK_NONE;
    if (a.key_limit != (masked && keys != 1 ? keys : p.seqlen_kv)) return "key_limit";
    if (a.mask_key_step != (masked && keys != 1)) return "mask_key_step";
    if (a.follow_lengths != (p.kv_lengths != 0 && p.align == VKATTN_ALIGN_BOTTOM_RIGHT))
        return "follow_lengths";
    if (a.mask_group_size * mask_extents(p)[1] != (masked ? p.num_heads_q : 1)) return "mask_group_size";
    if (a.class_heads != (m.classified ? class_heads(p, m) : 1)) return "class_heads";
    if (a.padding != 0) return "padding";
    if (a.class_batches != (m.classified && mask[0] != 0 ? p.batch : 1)) return "class_batches";
    return "";
}

std::vector<Patch> argument_patches(const Problem& p, const Model& m) {
    std::vector<Patch> expected;
    if (p.mask != VKATTN_MASK_NONE) expected.push_back({offsetof(Arguments, mask), Region::mask});
    // What is absent is loaded from the block itself.
    const auto one_of = [](bool present, Region region) { return present ? region : Region::arguments; };
    expected.push_back({offsetof(Arguments, classes), one_of(m.classified, Region::mask_classes)});
    expected.push_back(
        {offsetof(Arguments, kv_lengths), one_of(p.kv_lengths != 0 && p.batch != 0, Region::kv_lengths)});
    expected.push_back({offsetof(Arguments, query_offsets),
                        one_of(p.align == VKATTN_ALIGN_OFFSETS && p.batch != 0, Region::query_offsets)});
    return expected;
}

std::string barrier_flaw(const Plan& plan) {
    const std::vector<Dispatch>& all = plan.dispatches;
    // No two dispatches write the same element of these, so two writers do not wait for each other.
    const uint32_t outputs = bit(Region::out) | bit(Region::lse) | bit(Region::parts) |
                             bit(Region::parts_lse) | bit(Region::mask_classes) | bit(Region::dquery) |
                             bit(Region::dkey) | bit(Region::dvalue) | bit(Region::dbias) |
                             bit(Region::statistics);
    struct Run {
        uint32_t reads = 0, writes = 0;
    } before, run;  // unions depend on a dispatch just if one of theirs does
    const auto depends = [](const Run& a, const Pipeline& b) {
        return (a.writes & (b.reads | (b.writes & ~outputs))) != 0 || (a.reads & b.writes) != 0;
    };
    if (!all.empty() && all[0].barrier_before) return "a barrier before the first dispatch";
    bool separates = true;
    for (size_t i = 0; i < all.size(); i++) {
        const Dispatch& d = all[i];
        if (d.barrier_before) {
            if (!separates) return fmt::format("the barrier before run that ends at {} separates nothing", i);
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
