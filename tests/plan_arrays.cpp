// Arrays that a problem has: those that recordings of a plan are given, and the optional ones.
#include "plan_arrays.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "plan/terms.hpp"
#include "plan_pieces.hpp"

namespace vkattn::test {
namespace {

using core::Problem;
using core::Region;

struct Expected {
    Region region;
    uint32_t alignment;
    bool wanted, may_be_null = false;
};

// A backward reads what the forward has written, and a combine its parts. Where the arrays lie is tested on devices
// (tests/gpu/test_tensor_memory.cpp).
bool is_written(const Given& g, Region region) {
    if (region == Region::parts || region == Region::parts_lse) return false;
    if (region == Region::out || region == Region::lse) return g.backward == nullptr;
    return role_of(region) != core::Role::given;
}

std::string compare(const Given& g, const std::vector<Expected>& expected) {
    const std::vector<core::CallerArray>& arrays = g.plan.caller_arrays;
    size_t wanted = 0;
    const auto used = std::ranges::count_if(arrays, &core::CallerArray::is_used);
    for (const Expected& e : expected) {
        const auto found = std::find_if(arrays.begin(), arrays.end(), [&](const core::CallerArray& a) {
            return a.region == e.region && a.is_used;
        });
        if ((found != arrays.end()) != e.wanted)
            return fmt::format("the address of {} is {}checked", name_of(e.region), e.wanted ? "not " : "");
        if (!e.wanted) continue;
        wanted++;
        if (found->alignment_bytes != e.alignment || found->may_be_null != e.may_be_null)
            return fmt::format("the address of {} is held to {} bytes, not to {}", name_of(e.region),
                               found->alignment_bytes, e.alignment);
    }
    for (const core::CallerArray& a : arrays)
        if (a.is_output != is_written(g, a.region))
            return fmt::format("{} is taken for an {}put", name_of(a.region), a.is_output ? "out" : "in");
    return wanted == static_cast<size_t>(used) ? "" : "an address is checked that no recording is given";
}

// What forward and backward both read.
std::vector<Expected> inputs_of(const Problem& p) {
    const bool queries = p.batch != 0 && p.seqlen_q != 0, keys = queries && p.seqlen_kv != 0;
    const auto alignment = [&](Region region) {
        const VkattnDtype dtype = dtype_of(p, region);
        return has_blocks(dtype) ? 2 : std::max(p.alignment_bytes, bytes_of(dtype));
    };
    return {{Region::query, alignment(Region::query), queries},
            {Region::key, alignment(Region::key), keys},
            {Region::value, alignment(Region::value), keys && p.value_in_key == 0},
            {Region::out, alignment(Region::out), queries},
            {Region::mask, p.mask == VKATTN_MASK_BOOL ? 1 : bytes_of(p.mask_dtype),
             p.mask != VKATTN_MASK_NONE && queries && p.key_limit != 0}};
}

}  // namespace

uint32_t given_arrays(const Problem& p) {
    uint32_t bits = 0;
    for (const core::OptionalArray& array : core::optional_arrays(p))
        bits |= array.given ? bit(array.region) : 0;
    return bits;
}

uint32_t all_optional_arrays() {
    uint32_t bits = 0;
    for (const core::OptionalArray& array : core::optional_arrays({})) bits |= bit(array.region);
    return bits;
}

bool terms_change_every_score(const Problem& p) {
    return p.softcap > 0 || p.slopes != VKATTN_SLOPES_NONE;
}

// The addresses that a recording must be given are checked for null and alignment; no others are.
std::string caller_arrays_flaw(const Given& g) {
    std::vector<Expected> expected;
    const Problem& p = g.p;
    const bool queries = p.batch != 0 && p.seqlen_q != 0, keys = g.has_keys();
    if (g.combine != nullptr) {
        const core::Combine& c = *g.combine;
        const bool rows = c.batch != 0 && c.num_heads != 0 && c.seqlen_q != 0;
        expected = {{Region::parts, std::max(c.alignment_bytes, bytes_of(c.parts_dtype)), rows},
                    {Region::parts_lse, 4, rows},
                    {Region::out, c.alignment_bytes, rows},
                    {Region::lse, 4, true, true},
                    {Region::sinks, 4, true, true}};
        return compare(g, expected);
    }
    expected = inputs_of(p);
    for (const core::OptionalArray& array : core::optional_arrays(p))
        expected.push_back({array.region, array.region == Region::block_map ? 1u : 4u,
                            array.given && (p.seqlen_q != 0 || g.backward != nullptr)});
    if (g.backward == nullptr) {
        expected.push_back({Region::lse, 4, true, true});
        return compare(g, expected);
    }
    const auto bias = bias_extents(g);
    const auto aligned = [&](Region region) {
        return std::max(p.alignment_bytes, bytes_of(dtype_of(p, region)));
    };
    expected.insert(expected.end(),
                    {{Region::lse, 4, queries},
                     {Region::dout, aligned(Region::dout), queries},
                     {Region::dlse, 4, queries && g.backward->dlse != 0},
                     {Region::dquery, aligned(Region::dquery), queries},
                     {Region::dkey, aligned(Region::dkey), keys},
                     {Region::dvalue, aligned(Region::dvalue), keys},
                     {Region::dbias, bytes_of(p.mask_dtype), std::count(bias.begin(), bias.end(), 0u) == 0},
                     {Region::dsinks, 4, g.backward->dsinks != 0}});
    return compare(g, expected);
}

}  // namespace vkattn::test
