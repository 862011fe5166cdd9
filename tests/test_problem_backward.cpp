// What of a backward is refused whatever the device: dbias and strides.
#include <doctest/doctest.h>

#include "plan_cases.hpp"
#include "problem_fields.hpp"

using namespace vkattn;
using namespace vkattn::test;
using core::Problem;

namespace {

// The field that is wrong; "" if nothing is.
std::string bad_field(const Problem& p, void (*change)(VkattnBackward&)) {
    VkattnBackward b = core::default_backward();
    change(b);
    return field_of(core::resolve(p, b));
}

}  // namespace

TEST_CASE("backward: dbias of no float mask") {
    VkattnProblem p = make_problem({64, 64}, {2, 4, 2, 9, 9});
    const auto dbias = [](VkattnBackward& b) { b.dbias = 1; };
    CHECK_EQ(bad_field(resolved(p), dbias), "backward.dbias");
    set_mask(p, VKATTN_MASK_BOOL, MaskShape::whole);
    CHECK_EQ(bad_field(resolved(p), dbias), "backward.dbias");
    set_mask(p, VKATTN_MASK_FLOAT, MaskShape::whole);
    CHECK_EQ(bad_field(resolved(p), dbias), "");
    CHECK_EQ(bad_field(resolved(p), [](VkattnBackward&) {}), "");
}

TEST_CASE("backward: strides that are too large, break the alignment, or make a gradient overlap itself") {
    using B = VkattnBackward;
    const Problem p = resolved(make_problem({64, 64}, {2, 4, 2, 97, 113})),
                  aligned = resolved(make_problem({64, 64}, {2, 4, 2, 97, 113}, Layout::contiguous, 16));
    const std::pair<const char*, VkattnStrides B::*> all[] = {
        {"backward.dout_strides", &B::dout_strides},
        {"backward.dquery_strides", &B::dquery_strides},
        {"backward.dkey_strides", &B::dkey_strides},
        {"backward.dvalue_strides", &B::dvalue_strides}};
    for (const auto& [name, strides] : all) {
        const std::string field = name;
        const bool input = strides == &B::dout_strides;
        const auto with = [&, at = strides](const Problem& problem, uint64_t VkattnStrides::*level,
                                            uint64_t stride) {
            VkattnBackward b = core::default_backward();
            b.*at.*level = stride;
            return field_of(core::resolve(problem, b));
        };
        INFO(field);
        for (const auto level : {&VkattnStrides::batch, &VkattnStrides::head, &VkattnStrides::seq}) {
            CHECK_EQ(with(p, level, uint64_t{1} << 61), field);
            CHECK_EQ(with(aligned, level, (uint64_t{1} << 22) + 2), field);
            CHECK_EQ(with(p, level, (uint64_t{1} << 22) + 2), "");
            CHECK_EQ(with(p, level, 0), input ? "" : field);
        }
        CHECK_EQ(with(p, &VkattnStrides::seq, 63), input ? "" : field);
        CHECK_EQ(with(p, &VkattnStrides::head, 64), input ? "" : field);
        CHECK_EQ(with(p, &VkattnStrides::batch, 64), input ? "" : field);
    }
}
