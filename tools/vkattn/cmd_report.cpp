// vkattn report: everything about a device in one page. It goes on where an earlier start of it ended.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "call.hpp"
#include "ceilings.hpp"
#include "conformance_report.hpp"
#include "files.hpp"
#include "interruption.hpp"
#include "numbers.hpp"
#include "paths.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "suites.hpp"

namespace vkattn::tools {
namespace report {
namespace {

using conformance::Check;
using conformance::Result;
using conformance::Status;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

struct Options {
    std::string device, out, filter = "*";
    double minutes = 10;
    bool anew = false;
};

// Parts of the time after which the bench begins, though checks are left, and after which checks go on, though cases
// are left. The parts are chosen, not measured: a page of a slow device shall have something of both.
constexpr double checks_part = 0.5, bench_part = 0.85;
// A case is left out if a run would take longer than this at a quarter of the float32 rate that was measured: a
// watchdog may end what takes seconds.
constexpr double longest_case_s = 0.25, likely_part = 0.25;

// "NVIDIA H200" becomes "vkattn-report-nvidia-h200.html".
std::string file_of(const DeviceInfo& device) {
    std::string name;
    for (const char c : device.name) {
        if (std::isalnum(static_cast<unsigned char>(c)) != 0)
            name += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        else if (!name.empty() && name.back() != '-')
            name += '-';
    }
    while (!name.empty() && name.back() == '-') name.pop_back();
    return "vkattn-report-" + name + ".html";
}

// The UUID is not in it, because it is one copy's of the device.
Json identity_of(const DeviceInfo& d) {
    return {{"name", d.name},
            {"driver", d.driver},
            {"type", d.type},
            {"vulkan", version_text(d.api_version)},
            {"vkattn", vkattn_version()}};
}

struct BenchCase {
    SuiteCase suite_case;
    tools::Pass pass;
};

// These are forward and backward at several lengths, in the types that matter, and decoding.
std::vector<BenchCase> bench_cases() {
    std::vector<BenchCase> all;
    const auto add = [&](tools::Pass pass, VkattnDtype dtype, uint32_t d, uint32_t n) {
        all.push_back({{fmt::format("{} {} d{} n{}", pass == tools::Pass::forward ? "forward" : "backward",
                                    dtype_text(dtype), d, n),
                        plain_problem(dtype, 1, 16, 16, n, n, d)},
                       pass});
    };
    for (uint32_t n = 512; n <= 8192; n *= 2) {
        for (const uint32_t d : {64u, 128u}) {
            add(tools::Pass::forward, VKATTN_DTYPE_FLOAT16, d, n);
            add(tools::Pass::backward, VKATTN_DTYPE_FLOAT16, d, n);
        }
        add(tools::Pass::forward, VKATTN_DTYPE_FLOAT32, 64, n);
    }
    for (const uint32_t n : {8192u, 65536u})
        all.push_back({{fmt::format("decoding f16 d128 n{}", n),
                        plain_problem(VKATTN_DTYPE_FLOAT16, 1, 32, 8, 1, n, 128)},
                       tools::Pass::forward});
    return all;
}

constexpr const char* clock_is_wrong = "the device's clock says that it took no time";

bool is_positive(const Json& rate) {
    return rate.is_number() && std::isfinite(rate.get<double>()) && rate.get<double>() > 0;
}

std::unique_ptr<Runtime> open(const Options& options) {
    AttentionOptions named;
    named.device = options.device;
    return std::unique_ptr<Runtime>(new Runtime(open_runtime(named)));
}

class Reporter {
  public:
    Reporter(const Options& options, std::unique_ptr<Runtime> runtime)
        : options_(options),
          runtime_(std::move(runtime)),
          device_(runtime_->device()),
          checks_(conformance::chosen(conformance::checks_of(conformance::Level::standard), options.filter, 1,
                                      1)),
          path_(options.out.empty() ? file_of(device_) : options.out),
          journal_(path_ + ".part", identity_of(device_), device_.uuid) {}

    // Returns whether nothing was found wrong.
    bool run() {
        const bool resumes = !journal_.found().tried.empty();
        if (resumes)
            fmt::print("continues after {} checks in {}.part\n", journal_.found().tried.size(), path_);
        fmt::print("{}: {:.3g} minutes; what is found is kept in {}.part\n", device_.name, options_.minutes,
                   path_);
        std::fflush(stdout);
        find_culprit();
        // A small case of each feature comes first.
        check(remaining(conformance::Level::smoke), checks_part);
        check(remaining(), checks_part);
        bench();
        check(remaining(), bench_part);
        repeat();
        return finish();
    }

  private:
    double minutes_gone() const { return std::chrono::duration<double>(Clock::now() - start_).count() / 60; }
    bool is_over(double part) const { return minutes_gone() > part * options_.minutes; }

    // The checks under way when the program ended, one by one: one that ends it again is known then.
    void find_culprit() {
        const std::set<std::string> suspects = journal_.suspects();
        std::vector<Check> all;
        for (const Check& c : checks_)
            if (suspects.contains(c.name)) all.push_back(c);
        if (all.empty()) return;
        conformance::Running running = recorded(1);
        running.workers = 1;
        running.begins = [this](const Check& c) { journal_.begins(c.name, true); };
        conformance::run(device_, all, running);
    }

    conformance::Running recorded(double part) {
        return {.in_turns = true,
                .is_over = [this, part] { return is_over(part); },
                .begins = [this](const Check& c) { journal_.begins(c.name, false); },
                .ends = [this](const Check& c, const Result& r) { journal_.ends(c.name, r); }};
    }

    bool has_ended(const std::string& name) const {
        return std::ranges::count(journal_.found().ended, name) != 0;
    }

    // Returns those of a level that have not run.
    std::vector<Check> remaining(conformance::Level level = conformance::Level::standard) const {
        std::vector<Check> all = conformance::chosen(conformance::checks_of(level), options_.filter, 1, 1);
        std::erase_if(all, [&](const Check& c) {
            return journal_.found().tried.contains(c.name) || has_ended(c.name);
        });
        return all;
    }

    void check(const std::vector<Check>& checks, double part) {
        if (!checks.empty() && !stop_requested()) conformance::run(device_, checks, recorded(part));
    }

    // An error is a finding, too, and no reason to end. The device may be lost then, so it is opened again.
    template <class Measure>
    Json measured(const std::string& name, const Measure& measure) {
        journal_.begins(name, journal_.suspects().contains(name));
        std::string wrong;
        try {
            const Json result = measure();
            if (result.is_null()) journal_.stops(name);
            return result;
        } catch (const Error& error) {
            wrong = error.what();
        } catch (const RuntimeError& error) {
            wrong = error.what();
        }
        runtime_.reset();
        runtime_ = open(options_);
        return {{"name", name}, {"wrong", wrong}};
    }

    // Keeps the ceilings of this start or, if they cannot be measured, a case that went wrong.
    void measure_ceilings() {
        constexpr const char* name = "ceilings";
        if (has_ended(name)) return;
        const Json found = measured(name, [&] { return tools::to_json(tools::measure_ceilings(*runtime_)); });
        if (!found.contains("wrong") && is_positive(found["fma_tflops"]) && is_positive(found["copy_gbps"]) &&
            is_positive(found["read_gbps"])) {
            journal_.stops(name);
            journal_.add_ceilings(found);
        } else {
            journal_.add_bench({{"name", name}, {"wrong", found.value("wrong", clock_is_wrong)}});
        }
    }

    Json measure(const SuiteCase& c, tools::Pass pass) {
        const Json result = measured(c.name, [&] {
            return measure_case(*runtime_, c, {AttentionOptions(), pass, 5, "", "", ""});
        });
        const bool has_rates = result.contains("ms");
        if (has_rates &&
            !(is_positive(result["ms"]) && is_positive(result["tflops"]) && is_positive(result["gbps"])))
            return {{"name", c.name}, {"wrong", clock_is_wrong}};
        return result;
    }

    // Whoever asks for some checks is after these alone.
    void bench() {
        if (stop_requested() || options_.filter != "*") return;
        measure_ceilings();
        if (journal_.found().ceilings.is_null()) return;
        const double flops_a_second =
            1e12 * journal_.found().ceilings["fma_tflops"].get<double>() * likely_part;
        const std::vector<BenchCase> cases = bench_cases();
        Phase phase("benching", static_cast<double>(cases.size()));
        for (const auto& [c, pass] : cases) {
            phase.advance();
            if (stop_requested() || is_over(bench_part)) return;
            if (journal_.found().benched.contains(c.name) || has_ended(c.name)) continue;
            const double seconds = 1e12 * tflops(c.problem, pass, 1e3) / flops_a_second;
            if (seconds > longest_case_s)
                journal_.add_bench({{"name", c.name},
                                    {"refused", fmt::format("left out: a run may take {:.2g} s", seconds)}});
            else if (const Json result = measure(c, pass); !result.is_null())
                journal_.add_bench(result);
        }
    }

    // Returns the checks again and again, at least `least` of them, because each run of checks opens the device and
    // builds pipelines.
    static std::vector<Check> several(const std::vector<Check>& checks, size_t least) {
        std::vector<Check> all;
        do {
            all.insert(all.end(), checks.begin(), checks.end());
        } while (all.size() < least);
        return all;
    }

    // A driver may be wrong one time in many: with the time that is left all checks run again, and first, ten times,
    // those that were wrong.
    void repeat() {
        std::vector<Check> wrong, all;
        for (const Check& c : checks_) {
            const auto at = journal_.found().tried.find(c.name);
            if (at == journal_.found().tried.end() || at->second.result.status == Status::skipped ||
                has_ended(c.name))
                continue;
            all.push_back(c);
            if (at->second.wrong != 0) wrong.push_back(c);
        }
        check(several(wrong, 10 * wrong.size()), 1);
        while (!all.empty() && !is_over(1) && !stop_requested()) check(several(all, 200), 1);
    }

    bool finish() {
        const std::string page = to_html(journal_.found(), checks_, device_);
        write_text("--out", path_, page);
        const Json summary = to_json(journal_.found(), checks_)["summary"];
        fmt::print("{} passed, {} failed, {} skipped, {} not run, {} benched: {}\n",
                   summary["passed"].get<size_t>(), summary["failed"].get<size_t>(),
                   summary["skipped"].get<size_t>(), summary["not_run"].get<size_t>(),
                   std::ranges::count_if(journal_.found().benched,
                                         [](const auto& named) { return named.second.contains("ms"); }),
                   path_);
        if (stop_requested()) {
            fmt::print("interrupted: the next start goes on\n");
            return false;
        }
        journal_.remove();
        return summary["failed"] == 0 && summary["passed"] != 0 && summary["bench_wrong"] == 0;
    }

    const Options& options_;
    std::unique_ptr<Runtime> runtime_;
    const DeviceInfo device_;
    const std::vector<Check> checks_;
    const std::string path_;
    Journal journal_;
    const Clock::time_point start_ = Clock::now();
};

void run(const Options& options) {
    stop_on_signals("\nfinishing what is under way; the same signal again ends the program at once\n");
    if (conformance::chosen(conformance::checks_of(conformance::Level::standard), options.filter, 1, 1)
            .empty())
        throw UsageError("--filter", fmt::format("no check matches '{}'", options.filter));
    std::unique_ptr<Runtime> runtime = open(options);
    require_execution(*runtime);
    if (options.anew) {
        std::error_code ignored;  // what is there still is refused by its content
        fs::remove(path_of((options.out.empty() ? file_of(runtime->device()) : options.out) + ".part"),
                   ignored);
    }
    if (!Reporter(options, std::move(runtime)).run()) throw ExitCode{exit_not_right};
}

}  // namespace
}  // namespace report

void add_report(CLI::App& app) {
    CLI::App* sub = app.add_subcommand(
        "report", "Everything about a device in one page to send in: what is right, how reliably, how fast");
    auto options = std::make_shared<report::Options>();
    sub->add_option("--device", options->device, "Index, UUID or part of the name");
    sub->add_option("--minutes", options->minutes, "How long it may take, about; default 10")
        ->transform(real_validator<double>())
        ->check(CLI::PositiveNumber);
    auto* out = sub->add_option("--out", options->out, "The page; default vkattn-report-DEVICE.html");
    sub->add_option("--filter", options->filter,
                    "Runs the checks with such names alone, and benches nothing; * and ? stand for any text");
    sub->add_flag("--new", options->anew, "Ignores what an interrupted start has kept");
    sub->footer(
        "Whatever ends the program, the next start goes on behind it. Ends with exit code 4 if something is "
        "wrong or "
        "the run was interrupted. The page names no machine, no user, and no single copy of a device.");
    sub->callback([options, out] {
        if (out->count() != 0 && options->out.empty()) throw UsageError("--out", "is not the name of a file");
        report::run(*options);
    });
}

}  // namespace vkattn::tools
