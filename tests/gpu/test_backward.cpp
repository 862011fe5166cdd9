// The cases of tests/cases/backward.txt against the oracle's gradients.
#include <algorithm>
#include <cstdlib>

#include "backward_run.hpp"
#include "case_suite.hpp"
#include "skip.hpp"

using namespace vkattn::test;

namespace {

constexpr const char* case_text =
#include "backward_cases.inc"
    ;

const std::vector<Section>& sections() {
    static const std::vector<Section> all = parse_cases(case_text, "tests/cases/backward.txt");
    return all;
}

std::vector<std::string>& names_run() {
    static std::vector<std::string> names;
    return names;
}

bool add_name(const char* name) {
    names_run().emplace_back(name);
    return true;
}

void run_section(const std::string& name, Features features = Features::by_device) {
    const auto section =
        std::find_if(sections().begin(), sections().end(), [&](const Section& s) { return s.name == name; });
    REQUIRE(section != sections().end());
    run_cases(section->cases, run_backward_case, features);
}

}  // namespace

#define SECTION_NAMED(id, name)                                     \
    [[maybe_unused]] static const bool id##_added = add_name(name); \
    TEST_CASE("backward cases: " name) {                            \
        run_section(name);                                          \
    }

SECTION_NAMED(shapes, "shapes")
SECTION_NAMED(heads, "heads")
SECTION_NAMED(visibility, "visibility")
SECTION_NAMED(scores, "scores")
SECTION_NAMED(masks, "masks")
SECTION_NAMED(mask_heads, "mask heads and strides")
SECTION_NAMED(storage, "storage types")
SECTION_NAMED(cuts, "cuts")
SECTION_NAMED(empty, "empty")
SECTION_NAMED(slices, "slices")
SECTION_NAMED(materialized, "materialized")
SECTION_NAMED(nonfinite, "not finite")
SECTION_NAMED(dot_products, "16-bit dot products")
[[maybe_unused]] static const bool matrix_added = add_name("matrix"),
                                   nonfinite_matrix_added = add_name("not finite on matrix units"),
                                   bfloat16_added = add_name("matrix bfloat16");
static void run_matrix_section(const std::string& name, VkattnDtype dtype, const char* type) {
    if (!Device::get().has_matrix_unit(dtype))
        return vkattn::test::skip("the backward's cases of matrix units: " + Device::get().info().name +
                                  " multiplies no matrices of " + type);
    run_section(name);
}
TEST_CASE("backward cases: matrix") {
    run_matrix_section("matrix", VKATTN_DTYPE_FLOAT16, "float16");
}
TEST_CASE("backward cases: not finite on matrix units") {
    run_matrix_section("not finite on matrix units", VKATTN_DTYPE_FLOAT16, "float16");
}
TEST_CASE("backward cases: matrix bfloat16") {
    run_matrix_section("matrix bfloat16", VKATTN_DTYPE_BFLOAT16, "bfloat16");
}
[[maybe_unused]] static const bool gpu_modules_added = add_name("modules of GPUs");
TEST_CASE("backward cases: modules of GPUs") {
    for (const Features features : {Features::all, Features::none}) run_section("modules of GPUs", features);
}

TEST_CASE("every section of the backward's case file is run") {
    for (const Section& section : sections()) {
        CAPTURE(section.name);
        CHECK(std::count(names_run().begin(), names_run().end(), section.name) == 1);
        CHECK(!section.cases.empty());
    }
}

// As VKATTN_CASE of the forward.
TEST_CASE("the backward case in VKATTN_CASE" * doctest::skip()) {
    const char* const line = std::getenv("VKATTN_CASE");
    REQUIRE(line != nullptr);
    run_cases({parse_case(line, "VKATTN_CASE")}, run_backward_case);
}
