// The kernels with 16-bit dot products, on every device: where it lacks them, with modules that compute the same
// (dot_emulation.hpp).
#include <cstdlib>
#include <string>

#include "backward_run.hpp"
#include "case_plan.hpp"
#include "case_suite.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

using namespace vkattn::test;
namespace core = vkattn::core;

namespace {

constexpr const char* forward_text =
#include "forward_cases.inc"
    ;
constexpr const char* backward_text =
#include "backward_cases.inc"
    ;

// A pass, and its cases.
struct Pass {
    bool backward;
    const char* text;
    const char* file;
    RunCase run;
};
constexpr Pass of_forward = {false, forward_text, "tests/cases/forward.txt", run_case};
constexpr Pass of_backward = {true, backward_text, "tests/cases/backward.txt", run_backward_case};

// Of the first device, which this context believes to have 16-bit dot products of both types.
VkattnContext* dot_context() {
    static vkattn::Context* const one = [] {
        Interposer& between = Interposer::get();
        between.dot_products = true;
        auto* const made = new vkattn::Context(between.context());
        between.dot_products = false;
        return made;
    }();
    return one->get();
}

template <const Pass& pass>
Report run_dot_case(Device& device, VkattnContext*, const Case& c) {
    Report report = pass.run(device, dot_context(), c);
    if (report.skipped.empty() && report.failures.empty() && report.kernel != c.kernel)
        report.failures.push_back("planned " + report.kernel);
    return report;
}

// True if the planner refuses a case for what only these modules lack: tunings that divide no pairs; on GPUs, as many
// query rows as `rows` has; gradients of rows that see one key.
bool is_beyond_modules(const std::string& refusal) {
    return refusal.find("pair") != refusal.npos || refusal.find("it is for at most") != refusal.npos ||
           refusal.find("rows see one key at most") != refusal.npos;
}

// The section's cases of this type, or of none, with the kernels that have dot products in place of `tiles`, `rows` and
// the planner's choice, but for those that are beyond the modules.
std::vector<Case> dot_cases(const Section& section, const std::string& type, bool backward) {
    std::vector<Case> cases;
    for (const Case& c : section.cases) {
        const bool of_rows = c.kernel == "rows";
        if ((c.kernel != "auto" && c.kernel != "tiles" && !of_rows) ||
            c.precision != VKATTN_PRECISION_STORAGE)
            continue;
        std::string text = c.text;
        if (text.find("dtype=") == text.npos) text += " dtype=" + type;
        if (text.find("dtype=" + type) == text.npos) continue;
        const std::string named = " kernel=" + c.kernel;
        if (const size_t at = text.find(named); at != text.npos) text.erase(at, named.size());
        const Case of_dots = parse_case(text + " kernel=" + (of_rows ? "rows_dot" : "tiles_dot"), c.where);
        const auto plan = core_plan_of(dot_context()->caps, of_dots, backward);
        if (plan || !is_beyond_modules(plan.failure().message)) cases.push_back(of_dots);
    }
    return cases;
}

bool has_what_modules_need() {
    const core::DeviceCaps& caps = dot_context()->caps;
    if (caps.dot_float16 && caps.dot_bfloat16) return true;
    skip("16-bit dot products: " + Device::get().info().name + " lacks what their modules need beside them");
    return false;
}

template <const Pass& pass>
void run_section(const std::string& name, const std::string& type) {
    if (!has_what_modules_need()) return;
    for (const Section& section : parse_cases(pass.text, pass.file)) {
        if (section.name != name) continue;
        const std::vector<Case> cases = dot_cases(section, type, pass.backward);
        REQUIRE(!cases.empty());
        run_cases(cases, run_dot_case<pass>, Features::none);
        return;
    }
    FAIL("no such section");
}

}  // namespace

// Sections that are about what these modules have of their own: staging, products, weights that are hidden. A CPU takes
// minutes to build the pipelines of all of them, in both types.
// The tests' names are whole here, because tests/mutants/mutants.txt has some of them.
#define RUNS_SECTION(pass, test, section, type) \
    TEST_CASE_FIXTURE(OnDevice, test) {         \
        run_section<pass>(section, type);       \
    }

RUNS_SECTION(of_forward, "16-bit dot products, f16: head dims", "head dims", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: causal", "causal", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: masks", "masks", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: splits and cuts", "splits and cuts", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: not finite", "not finite", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: modules of GPUs", "modules of GPUs", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: rounding", "rounding", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: tunings", "tunings", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, f16: storage types", "storage types", "f16")
RUNS_SECTION(of_forward, "16-bit dot products, bf16: modules of GPUs", "modules of GPUs", "bf16")
RUNS_SECTION(of_forward, "16-bit dot products, bf16: storage types", "storage types", "bf16")
RUNS_SECTION(of_forward, "16-bit dot products, bf16: not finite", "not finite", "bf16")
RUNS_SECTION(of_backward, "16-bit dot products, backward in float16", "16-bit dot products", "f16")
RUNS_SECTION(of_backward, "16-bit dot products, backward in bfloat16", "16-bit dot products", "bf16")

// This runs the backward case that is in the environment variable VKATTN_CASE. The case names the kernel and a type.
TEST_CASE_FIXTURE(OnDevice, "the backward case in VKATTN_CASE, by 16-bit dot products" * doctest::skip()) {
    const char* const line = std::getenv("VKATTN_CASE");
    REQUIRE(line != nullptr);
    if (!has_what_modules_need()) return;
    run_cases({parse_case(line, "VKATTN_CASE")}, run_dot_case<of_backward>, Features::none);
}
