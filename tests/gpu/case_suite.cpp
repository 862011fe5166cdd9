#include "case_suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "case_plan.hpp"
#include "interposer.hpp"
#include "skip.hpp"
#include "vulkan/context.hpp"

namespace vkattn::test {

Job::Job(VkattnContext* context, const std::string& text)
    : c(with_possible_limit(context, parse_case(text, "here"))),
      plan(plan_of(context, c)),
      inputs(make_inputs(c)),
      expected(expect(c, inputs)) {
    if (!c.note.empty()) fmt::print("note: {}: {}\n", c.note, c.text);
}

Outcome run_forward(Device& device, const Plan& plan, const Case& c, const Inputs& inputs) {
    const auto [outcome, damage] = Forward(device, plan, c, inputs).run(plan);
    CHECK(damage == "");
    return outcome;
}

void check_right(const Job& job, const Forward& forward) {
    CAPTURE(job.c.text);
    CHECK(forward.damage() == "");
    CHECK(compare(forward.outcome(), job.expected) == "");
}

namespace {

// Which device has the pipelines of a key; stays so for the life of the process.
int home_of(const std::string& key) {
    static std::map<std::string, int> homes;
    return homes.try_emplace(key, static_cast<int>(homes.size() % 2)).first->second;
}

// Somebody who looks for a fault sets VKATTN_TEST_ONLY=TEXT. Then only cases with this text run, and each is named
// before it does, because a guard page may end the process.
std::atomic<bool> saw_wanted_case = false;

bool is_wanted(const Case& c) {
    const char* const only = std::getenv("VKATTN_TEST_ONLY");
    if (only == nullptr) return true;
    const bool wanted = c.text.find(only) != std::string::npos;
    if (wanted) std::fprintf(stderr, "%s: %s\n", c.where.c_str(), c.text.c_str());
    if (wanted) saw_wanted_case = true;
    return wanted;
}

const bool text_is_checked = at_end_of_run([]() -> std::string {
    const char* const only = std::getenv("VKATTN_TEST_ONLY");
    if (only == nullptr || saw_wanted_case) return "";
    return fmt::format("no case with the text of VKATTN_TEST_ONLY was run: {}", only);
});

// With --abort-after doctest is to stop at the first failure, but hears of none before all cases of a section have run.
bool is_enough(const Report& report) {
    static std::atomic<bool> failed = false;
    if (!report.failures.empty()) failed = true;
    return failed && doctest::getContextOptions()->abort_after > 0;
}

// On CPUs the planner leaves float16 to `tiles`. The cases that GPUs run on matrix units are run there once more,
// with the kernel for these by name.
std::vector<Case> with_matrix_cases(std::vector<Case> cases) {
    Device& device = Device::get();
    const core::DeviceCaps& caps = device.runtime().context()->caps;
    if (caps.type != core::DeviceType::cpu || !device.has_matrix_unit(VKATTN_DTYPE_FLOAT16)) return cases;
    for (size_t i = 0, given = cases.size(); i < given; i++) {
        Case c = cases[i];
        if (c.kernel != "auto" || !c.tuning.empty() || c.problem.dtype != VKATTN_DTYPE_FLOAT16) continue;
        const bool has_few_rows =
            uint64_t{c.problem.seqlen_q} * c.problem.num_heads_q <= 16u * c.problem.num_heads_kv;
        const auto add = [&](const char* kernel) {
            Case other = c;
            other.kernel = kernel;
            other.text += fmt::format(" kernel={}", kernel);
            Case without_limit = other;  // which run_case raises
            without_limit.max_dispatch_flops = 0;
            const bool is_planned = static_cast<bool>(core_plan_of(caps, without_limit, false));
            if (is_planned) cases.push_back(other);
            return is_planned;
        };
        if (!has_few_rows || !add("matrix_rows")) add("matrix");
    }
    return cases;
}

// One device's share of the cases.
void run_share(int index, const std::vector<Case>& cases, const std::vector<int>& homes, RunCase run,
               Features features, std::vector<Report>& reports) {
    Device& device = Device::get(index);
    for (size_t i = 0; i < cases.size(); i++) {
        if (homes[i] != index) continue;
        if (!is_wanted(cases[i])) continue;
        const bool needs_more =
            cases[i].kernel.starts_with("matrix") || cases[i].precision != VKATTN_PRECISION_STORAGE;
        const bool all_features =
            features == Features::by_device ? index != 0 || needs_more : features == Features::all;
        VkattnContext* const context = all_features ? device.runtime().context() : shared_context().get();
        try {
            reports[i] = run(device, context, cases[i]);
        } catch (const std::exception& e) {
            reports[i].failures.emplace_back(e.what());
        }
        for (const std::string& message : device.take_messages())
            reports[i].failures.push_back("validation: " + message);
        if (is_enough(reports[i])) return;
    }
}

}  // namespace

Share share_named(const char* variable) {
    const char* const text = std::getenv(variable);
    Share share;
    if (text == nullptr) return share;
    const bool valid =
        std::sscanf(text, "%zu/%zu", &share.i, &share.n) == 2 && share.i >= 1 && share.i <= share.n;
    INFO(variable, "=", text, " is not I/N with I from 1 to N");
    REQUIRE(valid);
    return share;
}

std::vector<Report> run_cases(const std::vector<Case>& given, RunCase run, Features features) {
    Device::get();
    const bool may_use_matrices = run == run_case && features == Features::by_device;
    const std::vector<Case> cases = may_use_matrices ? with_matrix_cases(given) : given;
    std::vector<Report> reports(cases.size());
    std::vector<int> homes;
    // The context without features is of the first device.
    for (const Case& c : cases) homes.push_back(features == Features::none ? 0 : home_of(c.pipeline_key()));
    std::thread other([&] { run_share(1, cases, homes, run, features, reports); });
    run_share(0, cases, homes, run, features, reports);
    other.join();
    for (size_t i = 0; i < cases.size(); i++) {
        const std::string name = fmt::format("{}: {}", cases[i].where, cases[i].text);
        if (!reports[i].note.empty()) fmt::print("note: {}: {}\n", reports[i].note, cases[i].text);
        if (!reports[i].skipped.empty()) skip(name + ": " + reports[i].skipped);
        for (const std::string& failure : reports[i].failures) FAIL_CHECK(name << "\n    " << failure);
        CHECK(reports[i].failures.empty());
    }
    return reports;
}

// Returns the cases of a section that are of the share VKATTN_TEST_CASES. A case's share follows from its text, so that
// short sections are not always of the first one, and each share has as many of what takes long.
static std::vector<Case> of_share(const std::vector<Case>& cases) {
    const Share share = share_named("VKATTN_TEST_CASES");
    std::vector<Case> own;
    for (const Case& c : cases) {
        uint32_t hash = 2166136261;  // FNV-1a
        for (const char letter : c.text) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619;
        if (share.has(hash)) own.push_back(c);
    }
    if (own.size() != cases.size()) skip("cases are of other shares (VKATTN_TEST_CASES)");
    return own;
}

bool SectionSuite::add(const char* name) {
    names_.emplace_back(name);
    return true;
}

const std::vector<Section>& SectionSuite::sections() {
    if (sections_.empty()) sections_ = parse_cases(text_, file_);
    return sections_;
}

void SectionSuite::run(const std::string& name, Features features) {
    const auto section = std::ranges::find(sections(), name, &Section::name);
    REQUIRE(section != sections_.end());
    run_cases(of_share(section->cases), run_one_, features);
}

void SectionSuite::run_on_matrix_units(const std::string& name, VkattnDtype dtype) {
    if (!Device::get().has_matrix_unit(dtype))
        return skip(std::string(file_) + ", " + name + ": " + Device::get().info().name +
                    " multiplies no such matrices");
    run(name);
}

void SectionSuite::check_all_added() {
    for (const Section& section : sections()) {
        CAPTURE(section.name);
        CHECK(std::ranges::count(names_, section.name) == 1);
        CHECK(!section.cases.empty());
    }
}

}  // namespace vkattn::test
