// Runs checks round after round: a driver may be wrong one time in many.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "call.hpp"
#include "conformance.hpp"
#include "interruption.hpp"

namespace vkattn::tools::conformance {
namespace {

// Each run opens the device, and one of less than this many checks would do little else.
constexpr size_t least_checks_of_run = 200;

class Rounds {
  public:
    Rounds(const DeviceInfo& device, const std::vector<Check>& checks) : times_(checks.size()) {
        all_.device = device;
        all_.checks = checks;
        all_.results.resize(checks.size());
    }

    // Takes in a run of the checks, one or more times.
    void add(const DeviceRun& run) {
        for (size_t i = 0; i < run.results.size(); i++)
            if (run.results[i].ran) add(i % times_.size(), run.results[i]);
    }

    DeviceRun summary(double seconds) {
        const auto [least, most] = std::ranges::minmax(times_);
        all_.rounds = least;
        all_.ends_in_round = most != least;
        all_.interrupted = least == 0 || stop_requested();
        all_.seconds = seconds;
        for (Result& result : all_.results)
            if (result.wrong_runs != 0)
                result.failures.insert(
                    result.failures.begin(),
                    fmt::format("wrong in {} of {}", result.wrong_runs, count_text(result.runs, "run")));
        return std::move(all_);
    }

  private:
    // Keeps the first failure, or the first result if there is none, or why the check was skipped each time.
    void add(size_t i, const Result& more) {
        Result& kept = all_.results[i];
        const bool is_judged = more.status != Status::skipped;
        const size_t runs = kept.runs + is_judged, wrong = kept.wrong_runs + (more.status == Status::failed);
        const double worst = std::max(kept.worst, more.worst), seconds = kept.seconds + more.seconds;
        const bool is_first = is_judged && runs == 1,
                   is_first_failure = more.status == Status::failed && wrong == 1;
        if (times_[i]++ == 0 || is_first || is_first_failure) kept = more;
        kept.runs = runs;
        kept.wrong_runs = wrong;
        kept.worst = worst;
        kept.seconds = seconds;
    }

    DeviceRun all_;
    std::vector<size_t> times_;  // that each check ran, or was skipped
};

}  // namespace

DeviceRun run_rounds(const DeviceInfo& device, const std::vector<Check>& checks, double hours,
                     bool until_failure) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    const auto is_over = [&] { return elapsed() >= hours * 3600; };
    Rounds rounds(device, checks);
    // The first round is a whole one, however short the time is.
    rounds.add(run(device, checks, {.until_failure = until_failure}));
    std::vector<Check> several;
    while (several.size() < least_checks_of_run) several.insert(several.end(), checks.begin(), checks.end());
    while (!is_over() && !stop_requested())
        rounds.add(
            run(device, several, {.until_failure = until_failure, .in_order = true, .is_over = is_over}));
    return rounds.summary(elapsed());
}

}  // namespace vkattn::tools::conformance
