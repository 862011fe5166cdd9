#include "plan_arrays.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "plan_checks.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Problem;
using core::Region;
using Arguments = shared::ForwardArguments;

struct Expected {
    Region region;
    uint32_t alignment;
    bool wanted, may_be_null = false;
};

uint32_t bytes_of_element(VkattnDtype dtype) {
    return dtype == VKATTN_DTYPE_FLOAT32 ? 4 : 2;
}

std::string compare(const std::vector<core::CallerArray>& arrays, const std::vector<Expected>& expected) {
    size_t wanted = 0;
    for (const Expected& e : expected) {
        const auto found = std::find_if(arrays.begin(), arrays.end(),
                                        [&](const core::CallerArray& a) { return a.region == e.region; });
        if ((found != arrays.end()) != e.wanted)
            return fmt::format("the address of {} is {}checked", name_of(e.region), e.wanted ? "not " : "");
        if (!e.wanted) continue;
        wanted++;
        if (found->alignment_bytes != e.alignment || found->may_be_null != e.may_be_null)
            return fmt::format("the address of {} is held to {} bytes, not to {}", name_of(e.region),
                               found->alignment_bytes, e.alignment);
    }
    return wanted == arrays.size() ? "" : "an address is checked that no recording is given";
}

// What forward and backward both read.
std::vector<Expected> inputs_of(const Problem& p) {
    const bool queries = p.batch != 0 && p.seqlen_q != 0, keys = queries && p.seqlen_kv != 0;
    const uint32_t element = bytes_of_element(p.dtype);
    return {{Region::query, p.alignment_bytes, queries},
            {Region::key, p.alignment_bytes, keys},
            {Region::value, p.alignment_bytes, keys},
            {Region::out, p.alignment_bytes, queries},
            {Region::mask, p.mask == VKATTN_MASK_BOOL ? 1 : element,
             p.mask != VKATTN_MASK_NONE && queries && p.key_limit != 0}};
}

}  // namespace

std::vector<OptionalArray> optional_arrays_of(const Problem& p) {
    const auto array = [&](Region region, size_t at, uint32_t present_bit, bool asked) {
        return OptionalArray{region, at, present_bit, asked, asked && p.batch != 0};
    };
    return {array(Region::kv_lengths, offsetof(Arguments, kv_lengths), PRESENT_KV_LENGTHS, p.kv_lengths != 0),
            array(Region::query_offsets, offsetof(Arguments, query_offsets), PRESENT_QUERY_OFFSETS,
                  p.align == VKATTN_ALIGN_OFFSETS)};
}

uint32_t given_arrays(const Problem& p) {
    uint32_t bits = 0;
    for (const OptionalArray& array : optional_arrays_of(p)) bits |= array.given ? bit(array.region) : 0;
    return bits;
}

uint32_t all_optional_arrays() {
    uint32_t bits = 0;
    for (const OptionalArray& array : optional_arrays_of({})) bits |= bit(array.region);
    return bits;
}

std::string caller_arrays_flaw(const Problem& p, const core::Plan& plan) {
    auto expected = inputs_of(p);
    expected.push_back({Region::lse, 4, true, true});
    for (const OptionalArray& array : optional_arrays_of(p))
        expected.push_back({array.region, 4, array.given && p.seqlen_q != 0});
    return compare(plan.caller_arrays, expected);
}

std::string caller_arrays_flaw(const Problem& p, const core::Backward& b, const core::Plan& plan) {
    const bool queries = p.batch != 0 && p.seqlen_q != 0, keys = p.batch != 0 && p.seqlen_kv != 0;
    auto expected = inputs_of(p);
    for (const OptionalArray& array : optional_arrays_of(p))
        expected.push_back({array.region, 4, array.given});
    const uint64_t* const bias = b.dbias_extents;
    const uint32_t element = bytes_of_element(p.dtype);
    expected.insert(expected.end(), {{Region::lse, 4, queries},
                                     {Region::dout, p.alignment_bytes, queries},
                                     {Region::dlse, 4, queries && b.dlse != 0},
                                     {Region::dquery, p.alignment_bytes, queries},
                                     {Region::dkey, p.alignment_bytes, keys},
                                     {Region::dvalue, p.alignment_bytes, keys},
                                     {Region::dbias, element, std::count(bias, bias + 4, 0u) == 0}});
    return compare(plan.caller_arrays, expected);
}

std::string caller_arrays_flaw(const core::Combine& c, const core::Plan& plan) {
    const bool rows = c.batch != 0 && c.num_heads != 0 && c.seqlen_q != 0;
    return compare(plan.caller_arrays,
                   {{Region::parts, std::max(c.alignment_bytes, bytes_of_element(c.parts_dtype)), rows},
                    {Region::parts_lse, 4, rows},
                    {Region::out, c.alignment_bytes, rows},
                    {Region::lse, 4, true, true}});
}

std::string arguments_flaw(const Problem& p, const Model& m, const Arguments& a) {
    const auto strides = stride_bytes(p);
    const auto mask = mask_strides(p);
    if (!std::equal(strides.begin(), strides.end(), a.stride)) return "strides in the argument block";
    if (!std::equal(mask.begin(), mask.end(), a.mask_stride)) return "mask strides";
    if (a.mask != 0 || a.classes != 0) return "an address in the argument block";
    uint32_t present = m.classified ? PRESENT_CLASSES : 0;
    for (const OptionalArray& array : optional_arrays_of(p)) {
        uint64_t address;
        std::memcpy(&address, reinterpret_cast<const char*>(&a) + array.at, sizeof address);
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
    if (a.mask_group_size * mask_extents(p)[1] != (masked ? p.num_heads_q : 1)) return "mask_group_size";
    if (a.class_heads != (m.classified ? class_heads(p, m) : 1)) return "class_heads";
    if (a.padding != 0) return "padding";
    if (a.class_batches != (m.classified && mask[0] != 0 ? p.batch : 1)) return "class_batches";
    return "";
}

std::vector<core::Patch> argument_patches(const Problem& p, const Model& m) {
    std::vector<core::Patch> expected;
    if (p.mask != VKATTN_MASK_NONE) expected.push_back({offsetof(Arguments, mask), Region::mask});
    // What is absent is loaded from the block itself.
    const auto one_of = [](bool present, Region region) { return present ? region : Region::arguments; };
    expected.push_back({offsetof(Arguments, classes), one_of(m.classified, Region::mask_classes)});
    for (const OptionalArray& array : optional_arrays_of(p))
        expected.push_back({static_cast<uint32_t>(array.at), one_of(array.given, array.region)});
    return expected;
}

Values term_constants(const Problem& p) {
    return {{"has_softcap", p.softcap > 0}, {"mask_kind", mask_constant(p)}};
}

bool terms_change_every_score(const Problem& p) {
    return p.softcap > 0;
}

}  // namespace vkattn::test
