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
    Rounds(const DeviceInfo& device, const std::vector<Check>& checks) {
        all_.device = device;
        all_.checks = checks;
        all_.results.resize(checks.size());
    }

    // Takes in a run of the checks, one or more times.
    void add(const DeviceRun& run) {
        for (size_t i = 0; i < run.results.size(); i++)
            if (run.results[i].ran) add(all_.results[i % all_.results.size()], run.results[i]);
    }

    DeviceRun summary(double seconds) {
        const auto [least, most] = std::ranges::minmax(all_.results, {}, &Result::runs);
        all_.rounds = least.runs;
        all_.ends_in_round = most.runs != least.runs;
        all_.interrupted = least.runs == 0 || stop_requested();
        all_.seconds = seconds;
        for (Result& result : all_.results)
            if (result.wrong_runs != 0)
                result.failures.insert(
                    result.failures.begin(),
                    fmt::format("wrong in {} of {}", result.wrong_runs, count_text(result.runs, "run")));
        return std::move(all_);
    }

  private:
    static void add(Result& kept, const Result& more) {
        const size_t runs = kept.runs + 1;
        const size_t wrong = kept.wrong_runs + (more.status == Status::failed ? 1 : 0);
        const double worst = std::max(kept.worst, more.worst), seconds = kept.seconds + more.seconds;
        if (runs == 1 || (wrong == 1 && more.status == Status::failed)) kept = more;
        kept.runs = runs;
        kept.wrong_runs = wrong;
        kept.worst = worst;
        kept.seconds = seconds;
    }

    DeviceRun all_;
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
        rounds.add(run(device, several, {.until_failure = until_failure, .is_over = is_over}));
    return rounds.summary(elapsed());
}

}  // namespace vkattn::tools::conformance
