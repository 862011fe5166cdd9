// The option batch_invariant: the bits of a row depend on its own query, keys, values, mask row, length and offset.
#include <fmt/format.h>

#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn;
using namespace vkattn::test;

namespace {

// Another batch around the sequence, which is its batch `slot` and begins at head and key 0 of it, and at a query row.
struct Company {
    const char* text;
    uint32_t slot;
    uint32_t first_row = 0;
};

// `common` holds for the sequence and for all its companies. So does the limit of a dispatch, because a row's keys
// are cut by it.
void check_invariance(Device& device, VkattnContext* context, const std::string& common,
                      const char* alone_text, const std::vector<Company>& companies) {
    const auto read = [&](const char* text, int seed) {
        return parse_case(fmt::format("batch_invariant seed={} {} {}", seed, common, text), "here");
    };
    Case alone_case = read(alone_text, 1);
    for (const Company& company : companies)
        raise_limit(alone_case, [&](const Case& limited) {
            Case c = read(company.text, 7);
            c.max_dispatch_flops = limited.max_dispatch_flops;
            plan_of(context, c);
            plan_of(context, limited);
        });
    const Inputs alone_inputs = make_inputs(alone_case);
    const Outcome alone = run_forward(device, plan_of(context, alone_case), alone_case, alone_inputs);
    CHECK(compare(alone, expect(alone_case, alone_inputs)) == "");
    for (const auto& [text, slot, first_row] : companies) {
        Case c = read(text, 7);
        c.max_dispatch_flops = alone_case.max_dispatch_flops;
        CAPTURE(c.text);
        const Inputs inputs = in_company(alone_case, alone_inputs, c, slot, first_row);
        const Outcome all = run_forward(device, plan_of(context, c), c, inputs);
        CHECK(compare(all, expect(c, inputs)) == "");
        CHECK(own_rows(alone_case, c, all, slot, first_row).same_bits(alone));
    }
}

constexpr const char* types[] = {"dtype=f32 d=8", "dtype=f16 d=59"};

}  // namespace

TEST_CASE_FIXTURE(Recorded, "batch invariance: one token over a cache") {
    for (const char* type : types)
        check_invariance(
            device, context.get(), type, "hq=4 hkv=2 sq=1 skv=500 lengths=500 offsets=499 causal",
            {{"b=5 hq=4 hkv=2 sq=1 skv=500 lengths=0,500,500,500,500 offsets=0,9,9,9,499 causal", 4},
             // The others are longer, shorter, empty; the padding is another.
             {"b=3 hq=4 hkv=2 sq=1 skv=799 lengths=799,500,0 offsets=798,499,0 causal", 1},
             {"b=3 hq=4 hkv=2 sq=1 skv=501 lengths=7,1,500 offsets=6,0,499 causal", 2},
             // More queries, more heads, and both.
             {"b=2 hq=4 hkv=2 sq=97 skv=600 lengths=500,600 offsets=499,3 causal", 0},
             {"b=1 hq=6 hkv=3 sq=1 skv=500 lengths=500 offsets=499 causal", 0},
             {"b=9 hq=8 hkv=4 sq=16 skv=500 lengths=5,5,5,500,5,5,5,5,5 "
              "offsets=0,0,0,499,0,0,0,0,0 causal layout=bshd",
              3}});
}

TEST_CASE_FIXTURE(Recorded, "batch invariance: a chunk of a prompt") {
    for (const char* type : types)
        check_invariance(device, context.get(), type,
                         "h=2 sq=33 skv=97 lengths=97 offsets=60 causal window=50,0",
                         {{"b=3 h=2 sq=33 skv=97 lengths=97,97,97 offsets=60,60,60 causal window=50,0", 2},
                          {"b=2 h=2 sq=33 skv=799 lengths=97,799 offsets=60,700 causal window=50,0", 0},
                          {"b=2 h=2 sq=203 skv=150 lengths=0,97 offsets=60,60 causal window=50,0", 1},
                          {"b=4 h=5 sq=34 skv=98 lengths=1,97,2,3 offsets=0,60,1,2 causal window=50,0", 1}});
}

TEST_CASE_FIXTURE(Recorded, "batch invariance: masks, softcap, scores that grow") {
    for (const char* type : types) {
        check_invariance(device, context.get(), std::string(type) + " mask_fill=rows mask=float softcap=3",
                         "h=2 sq=9 skv=97 mask_shape=1,2,9,97",
                         {{"b=3 h=2 sq=9 skv=97 mask_shape=3,2,9,97", 1},
                          {"b=2 h=3 sq=40 skv=120 lengths=97,120 mask_shape=2,3,40,120", 0}});
        check_invariance(device, context.get(), std::string(type) + " mask=bool mask_fill=banded",
                         "h=2 sq=33 skv=203 mask_shape=1,2,33,203",
                         {{"b=2 h=2 sq=33 skv=203 mask_shape=2,2,33,203", 1},
                          {"b=2 h=2 sq=70 skv=399 lengths=203,399 mask_shape=2,2,70,399", 0}});
        // A row must not follow what its neighbours' maximum does.
        check_invariance(
            device, context.get(), std::string(type) + " values=ascending", "h=2 sq=5 skv=147 lengths=147",
            {{"b=2 h=2 sq=33 skv=300 lengths=147,300", 0}, {"b=2 h=2 sq=5 skv=147 lengths=1,147", 1}});
    }
}

// A workgroup with the tiles of a large GPU costs more than the limits below, which are then raised. All keys of the
// last test's sequence are in one tile of 128, so that alone it is not cut at all, but in company it is.
constexpr const char* gpu_tiles =
    "tuning=threads=64,lanes=8,rows=8,cols=16,chunk=16,p_blocks=1,v_keys=8,prefetch=0,unroll=1,rolled=1";

TEST_CASE_FIXTURE(Recorded, "batch invariance: cuts for the watchdog") {
    for (const char* tiles : {"", gpu_tiles}) {
        for (const char* type : types)
            check_invariance(device, context.get(), fmt::format("{} {} max_flops=400000", type, tiles),
                             "h=2 sq=9 skv=399 lengths=399",
                             {{"b=3 h=2 sq=97 skv=399 lengths=0,399,399", 1},
                              {"b=2 h=4 sq=9 skv=799 lengths=799,399", 1}});
        // Bounds that are known beforehand: the first part that any row sees is another one.
        check_invariance(device, context.get(), fmt::format("{} max_flops=40000 window=100,0", tiles),
                         "h=2 sq=20 skv=256 d=16",
                         {{"h=2 sq=64 skv=256 d=16", 0, 44}, {"b=2 h=2 sq=40 skv=256 d=16", 1, 20}});
    }
}

// Through the runtime's own context, which has matrix units. Whether a tile of keys must be finished depends on a row's
// neighbours; its bits must not.
TEST_CASE_FIXTURE(Recorded, "batch invariance: matrix units") {
    VkattnContext* const own = device.runtime().context();
    if (own->caps.matrices.empty())
        return vkattn::test::skip("batch invariance on matrix units: there are none");
    const std::string type = "kernel=matrix dtype=f16 d=24";
    check_invariance(device, own, type, "h=2 sq=33 skv=97 lengths=97 offsets=60 causal window=50,0",
                     {{"b=2 h=2 sq=33 skv=799 lengths=97,799 offsets=60,700 causal window=50,0", 0},
                      {"b=2 h=2 sq=203 skv=150 lengths=0,97 offsets=60,60 causal window=50,0", 1},
                      {"b=4 h=5 sq=34 skv=98 lengths=1,97,2,3 offsets=0,60,1,2 causal window=50,0", 1}});
    check_invariance(device, own, type, "hq=4 hkv=2 sq=1 skv=200 lengths=200 offsets=199 causal",
                     {{"b=2 hq=4 hkv=2 sq=97 skv=300 lengths=200,300 offsets=199,3 causal", 0},
                      {"b=1 hq=6 hkv=3 sq=1 skv=200 lengths=200 offsets=199 causal", 0}});
    check_invariance(device, own, type + " values=ascending", "h=2 sq=5 skv=147 lengths=147",
                     {{"b=2 h=2 sq=33 skv=300 lengths=147,300", 0}});
}
