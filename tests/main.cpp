// doctest's main. The last line it prints counts test cases: "N passed, N failed, N skipped". Skipped are the
// cases that doctest left out, and every skip() of skip.hpp; a case that skipped without a check has not
// passed, and one that neither checked nor skipped has failed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "skip.hpp"

namespace {

std::optional<doctest::TestRunStats> finished;  // doctest hands its counts to reporters only
unsigned empty_cases = 0;                       // that skipped without a check
std::vector<std::string> unchecked;             // names of those that had neither
int skips_before = 0;

struct Counter : doctest::IReporter {
    explicit Counter(const doctest::ContextOptions&) {}
    void report_query(const doctest::QueryData&) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& stats) override { finished = stats; }
    void test_case_start(const doctest::TestCaseData& test) override {
        skips_before = vkattn::test::skip_count;
        name = test.m_name;
    }
    void test_case_reenter(const doctest::TestCaseData&) override {}
    void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
        const bool skipped = vkattn::test::skip_count != skips_before;
        if (!stats.testCaseSuccess || stats.numAssertsCurrentTest != 0) return;
        empty_cases += skipped;
        if (!skipped) unchecked.push_back(name);
    }
    void test_case_exception(const doctest::TestCaseException&) override {}
    void subcase_start(const doctest::SubcaseSignature&) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData&) override {}
    void log_message(const doctest::MessageData&) override {}
    void test_case_skipped(const doctest::TestCaseData&) override {}

    std::string name;
};
REGISTER_LISTENER("counter", 1, Counter);

}  // namespace

int main(int argc, char** argv) {
    doctest::Context context(argc, argv);
    int result = context.run();
    if (!finished) return result;  // doctest was asked for its help, or a list
    const unsigned ran = finished->numTestCasesPassingFilters;
    unsigned failed = finished->numTestCasesFailed;
    const auto fail_run = [&](const std::string& why) {
        std::printf("%s\n", why.c_str());
        failed++;
        result = 1;
    };
    const unsigned passed = ran - failed - empty_cases - static_cast<unsigned>(unchecked.size());
    if (ran == 0) fail_run("no test case has a name that was asked for");
    for (const std::string& name : unchecked) fail_run("no check was made by: " + name);
    for (const vkattn::test::RunCheck check : vkattn::test::run_checks())
        if (const std::string why = check(); !why.empty()) fail_run(why);
    const unsigned said = static_cast<unsigned>(vkattn::test::skip_count);
    std::printf("%u passed, %u failed, %u skipped\n", passed, failed, finished->numTestCases - ran + said);
    return result;
}
