// Problems, backwards and combines with any number in one field or two, of those at which 32-bit and 64-bit arithmetic
// goes wrong. There must be a sound plan or a refusal that names a field.
// fuzz_plan does the same with inputs that it seeks; these are made in every build.
#include <doctest/doctest.h>

#include <random>

#include <fmt/format.h>

#include "plan_flaws.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

constexpr int64_t two_30 = int64_t{1} << 30, two_31 = int64_t{1} << 31, two_32 = int64_t{1} << 32;

class Random {
  public:
    uint64_t below(uint64_t n) { return engine_() % n; }
    template <class All>
    const auto& of(const All& all) {
        return all[below(std::size(all))];
    }
    // An integer, or an enumerator: an enumeration has no values beyond those here.
    template <class T>
    void spoil(T& field) {
        static constexpr int64_t words[] = {0,       1,         two_30, two_30 + 1, two_31 - 1, two_31,
                                            -two_31, -1,        two_32, two_32 - 1, -two_32,    INT64_MAX,
                                            97,      INT64_MIN, 65535,  65536,      two_31 - 2, two_30 - 1};
        static constexpr int64_t enumerators[] = {0, 1, 2, 3, 4, 5, two_31 - 1};
        field = static_cast<T>(std::is_enum_v<T> ? of(enumerators) : of(words));
    }
    void spoil(VkattnStrides& s) {
        uint64_t* const levels[] = {&s.batch, &s.head, &s.seq};
        spoil(*of(levels));
    }
    // One of these fields.
    template <class... Fields>
    void spoil_one(Fields&... fields) {
        size_t at = below(sizeof...(fields));
        ((at-- == 0 ? spoil(fields) : void()), ...);
    }

  private:
    std::mt19937_64 engine_{46};
};

void spoil(Random& random, VkattnProblem& p) {
    uint32_t& extent = p.mask_extents[random.below(4)];
    random.spoil_one(p.dtype, p.batch, p.num_heads_q, p.num_heads_kv, p.seqlen_q, p.seqlen_kv, p.head_dim_qk,
                     p.head_dim_v, p.causal, p.window_left, p.window_right, p.align, p.query_offset,
                     p.kv_lengths, p.mask, p.mask_rank, extent, p.mask_strides, p.alignment_bytes,
                     p.block_map, p.block_rows, p.block_keys, p.block_map_heads, p.query_strides,
                     p.key_strides, p.value_strides, p.out_strides, p.key_dtype, p.value_dtype, p.out_dtype,
                     p.mask_dtype, p.key_scales, p.value_scales);
}

void spoil(Random& random, VkattnBackward& b) {
    random.spoil_one(b.dlse, b.dbias, b.dsinks, b.dout_strides, b.dquery_strides, b.dkey_strides,
                     b.dvalue_strides);
}

void spoil(Random& random, Options& o) {
    random.spoil_one(o.max_scratch_bytes, o.max_dispatch_flops, o.num_splits, o.precision);
}

void spoil(Random& random, VkattnCombine& c) {
    random.spoil_one(c.dtype, c.parts_dtype, c.num_parts, c.num_heads, c.batch, c.seqlen_q, c.head_dim_v,
                     c.alignment_bytes, c.part_stride, c.parts_strides, c.out_strides);
}

struct Counts {
    size_t planned = 0, unsupported = 0, invalid = 0;
};

// A refusal has a status of the contract, the name of a field if an argument is wrong, and one line of text.
std::string refusal_flaw(const core::Failure& why, Counts& counts) {
    const bool is_invalid = why.status == VKATTN_INVALID_ARGUMENT;
    (is_invalid ? counts.invalid : counts.unsupported)++;
    if (!is_invalid && why.status != VKATTN_UNSUPPORTED) return "status";
    if (is_invalid && why.field.empty()) return "no field is named: " + why.message;
    const bool fits = !why.message.empty() && why.message.size() < sizeof(VkattnError::message);
    return fits && why.message.find('\n') == std::string::npos ? "" : "text: " + why.message;
}

// Plans of more dispatches than `many` take long to check and are like others: of those only the number of dispatches
// is checked, against the boxes that a few grids may be cut into.
template <class Check>
std::string plan_flaw(const core::Result<Plan>& plan, Counts& counts, const Check& check) {
    constexpr size_t many = 300, most = 4 * 65536;
    if (!plan) return refusal_flaw(plan.failure(), counts);
    counts.planned++;
    const size_t count = plan->dispatches.size();
    return count <= many ? check(*plan) : count <= most ? "" : "too many dispatches";
}

std::string attention_flaw(Random& random, const DeviceCaps& caps, VkattnProblem& given, Counts& counts) {
    const Features& f = random.of(all_features());
    given = make_problem(random.of(all_head_dims()), random.of(all_shapes()),
                         static_cast<Layout>(random.below(static_cast<size_t>(Layout::count))),
                         4u << random.below(3), f.dtype);
    set_features(given, f);
    for (size_t fields = random.below(3); fields > 0; fields--) spoil(random, given);
    const auto p = core::resolve(given);
    if (!p) return refusal_flaw(p.failure(), counts);
    Options o = options_of(f);
    if (random.below(3) == 0) spoil(random, o);
    if (random.below(2) == 0)
        return plan_flaw(make_plan(caps, *p, o), counts,
                         [&](const Plan& x) { return flaw_of(caps, *p, x, o); });
    VkattnBackward asked = core::default_backward();
    asked.dlse = random.below(2) == 0;
    asked.dsinks = p->sinks;
    asked.dbias = p->mask == VKATTN_MASK_FLOAT;
    for (size_t fields = random.below(3); fields > 0; fields--) spoil(random, asked);
    const auto b = core::resolve(*p, asked);
    if (!b) return refusal_flaw(b.failure(), counts);
    return plan_flaw(make_plan(caps, *p, *b, o), counts,
                     [&](const Plan& x) { return flaw_of(caps, *p, *b, x, o); });
}

std::string combine_flaw(Random& random, const DeviceCaps& caps, Counts& counts) {
    VkattnCombine c = core::default_combine();
    c.num_parts = 3;
    c.batch = 2;
    c.num_heads = 5;
    c.seqlen_q = 97;
    c.head_dim_v = random.of(all_head_dims()).v;
    c.dtype = c.parts_dtype = static_cast<VkattnDtype>(random.below(3));
    for (size_t fields = random.below(4); fields > 0; fields--) spoil(random, c);
    const auto combine = core::resolve(c);
    if (!combine) return refusal_flaw(combine.failure(), counts);
    return plan_flaw(make_plan(caps, *combine), counts,
                     [&](const Plan& x) { return flaw_of(caps, *combine, x); });
}

}  // namespace

TEST_CASE("random: any number in any field makes a sound plan or a refusal with a reason") {
    const std::vector<DeviceCaps> devices{probed(matrix_device("nvidia_h200")), smallest_device(),
                                          matrix_device("lavapipe"), matrix_device("amd_navi31")};
    Random random;
    Flaws flaws;
    Counts attention, combine;
    for (size_t i = 0; i < 20'000; i++) {
        const DeviceCaps& caps = devices[i % devices.size()];
        VkattnProblem given = core::default_problem();
        flaws.add(attention_flaw(random, caps, given, attention), caps.name, Problem{given});
        if (i % 4 == 0) flaws.add(combine_flaw(random, caps, combine), caps.name, {});
    }
    for (const Counts& counts : {attention, combine}) {
        CHECK_GT(counts.planned, 1000);
        CHECK_GT(counts.invalid, 1000);
    }
    CHECK_GT(attention.unsupported, 500);
}
