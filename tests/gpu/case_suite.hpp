// Cases as test cases: many of them on both devices, or one with all that a test of its own needs.
#pragma once

#include "fixture.hpp"
#include "forward_run.hpp"

namespace vkattn::test {

// A case with all that is needed to run and judge it.
struct Job {
    Job(VkattnContext* context, const std::string& text);
    Job(const Job&) = delete;
    Forward forward(Device& device, Place place = Place::end, uint32_t old_content = poison_word) const {
        return Forward(device, plan, c, inputs, place, old_content);
    }

    Case c;
    Plan plan;
    Inputs inputs;
    Expected expected;
};

// Runs a forward in a submission of its own and returns what it wrote. It checks that nothing else was written to.
Outcome run_forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs);
// Checks that the results are right by the error rule, and that nothing else was written to.
void check_right(const Job& job, const Forward& forward);

// Contexts that cases run in. by_device: the first device's has no feature but the address, unless a case needs more,
// the second's has all. Modules for 16-bit types differ by these features.
enum class Features { by_device, all, none };

// Runs all of them on both devices, and on CPUs those of float16 on matrix units too; cases with the same pipelines
// on the same one. Reports failures and skips to doctest.
using RunCase = Report (*)(Device& device, VkattnContext* context, const Case& c);
std::vector<Report> run_cases(const std::vector<Case>& cases, RunCase run = run_case,
                              Features features = Features::by_device);

// The Ith of N shares of something.
struct Share {
    size_t i = 1, n = 1;
    bool has(size_t item) const { return item % n == i - 1; }
};
// Returns the share I/N that an environment variable names, or everything without it.
Share share_named(const char* variable);

// The sections of a case file, each of which is a test case, so that they can be chosen by name.
class SectionSuite {
  public:
    SectionSuite(const char* text, const char* file, RunCase run_one)
        : text_(text), file_(file), run_one_(run_one) {}

    bool add(const char* name);
    void run(const std::string& name, Features features = Features::by_device);
    // Skips where the device multiplies no matrices of this type.
    void run_on_matrix_units(const std::string& name, VkattnDtype dtype);
    // To doctest: each section of the file has been added once, and has cases.
    void check_all_added();

  private:
    const std::vector<Section>& sections();

    const char* text_;
    const char* file_;
    RunCase run_one_;
    std::vector<Section> sections_;
    std::vector<std::string> names_;
};

// `suite` is a function that returns the suite, which static initialization needs before it runs any test.
#define ADD_SECTION(suite, name) \
    [[maybe_unused]] static const bool DOCTEST_ANONYMOUS(section_added) = suite().add(name)

#define TEST_SECTION(suite, prefix, name) \
    ADD_SECTION(suite, name);             \
    TEST_CASE(prefix name) {              \
        suite().run(name);                \
    }

#define TEST_MATRIX_SECTION(suite, prefix, name, dtype) \
    ADD_SECTION(suite, name);                           \
    TEST_CASE(prefix name) {                            \
        suite().run_on_matrix_units(name, dtype);       \
    }

}  // namespace vkattn::test
