// The cases of tests/cases/backward.txt against the oracle's gradients.
#include <algorithm>
#include <cstdlib>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "skip.hpp"

using namespace vkattn::test;

namespace {

SectionSuite& backward_suite() {
    static SectionSuite suite(
#include "backward_cases.inc"
        , "tests/cases/backward.txt", run_backward_case);
    return suite;
}

}  // namespace

#define BACKWARD_SECTION(name) TEST_SECTION(backward_suite, "backward cases: ", name)

BACKWARD_SECTION("shapes")
BACKWARD_SECTION("heads")
BACKWARD_SECTION("visibility")
BACKWARD_SECTION("scores")
BACKWARD_SECTION("masks")
BACKWARD_SECTION("mask heads and strides")
BACKWARD_SECTION("storage types")
BACKWARD_SECTION("cuts")
BACKWARD_SECTION("empty")
BACKWARD_SECTION("slices")
BACKWARD_SECTION("materialized")
BACKWARD_SECTION("not finite")
BACKWARD_SECTION("16-bit dot products")
ADD_SECTION(backward_suite, "matrix");
ADD_SECTION(backward_suite, "not finite on matrix units");
ADD_SECTION(backward_suite, "matrix bfloat16");
TEST_CASE("backward cases: matrix") {
    backward_suite().run_on_matrix_units("matrix", VKATTN_DTYPE_FLOAT16);
}
TEST_CASE("backward cases: not finite on matrix units") {
    backward_suite().run_on_matrix_units("not finite on matrix units", VKATTN_DTYPE_FLOAT16);
}
TEST_CASE("backward cases: matrix bfloat16") {
    backward_suite().run_on_matrix_units("matrix bfloat16", VKATTN_DTYPE_BFLOAT16);
}
ADD_SECTION(backward_suite, "modules of GPUs");
TEST_CASE("backward cases: modules of GPUs") {
    for (const Features features : {Features::all, Features::none})
        backward_suite().run("modules of GPUs", features);
}

TEST_CASE("every two features of the backward together") {
    SectionSuite pairs(
#include "pairwise_cases.inc"
        , "tests/cases/pairwise.txt", run_backward_case);
    pairs.run("backward");
}

TEST_CASE("every section of the backward's case file is run") {
    backward_suite().check_all_added();
}

// As VKATTN_CASE of the forward.
TEST_CASE("the backward case in VKATTN_CASE" * doctest::skip()) {
    const char* const line = std::getenv("VKATTN_CASE");
    REQUIRE(line != nullptr);
    run_cases({parse_case(line, "VKATTN_CASE")}, run_backward_case);
}
