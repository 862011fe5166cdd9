// vkattn conformance: is vkattn right on this device? It tries single features of the driver (driver_checks.hpp), and
// runs the cases of tests/cases, which the project's own GPU tests run too, and compares results with the fp64 oracle.
// A check is a feature of the driver, or a case with the kernel that it runs on.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common.hpp"
#include "gpu/forward_run.hpp"

namespace vkattn::tools::conformance {

// smoke: the first small case of each section. standard: all cases, and those of float16 on matrix units, too. full:
// each case on each kernel.
enum class Level { smoke, standard, full };
Level parse_level(const std::string& text);  // throws UsageError

// Pass says what is done with a case: forward, backward, combine, or a promise about running (tests/gpu/behaviour.hpp).
// Or a feature of the driver is tried, which takes no case.
struct Pass {
    std::string name;  // the first word of --case
    bool backward = false;
    std::function<test::Report(test::Device&, VkattnContext*, const test::Case&)> run;
    bool is_of_driver = false;  // it takes no case
};
const std::vector<Pass>& passes();

struct Check {
    std::string name;  // stable: feature/words of the case, and /kernel where the check names one
    std::string
        feature;  // driver and what is tried; or forward, backward, combine or behaviour, and the section
    const Pass* pass = nullptr;
    bool forced = false;  // the level names the kernel, not the case
    bool random = false;  // it may be a problem that the library refuses, which says nothing
    test::Case c;

    std::string line() const;  // for --case
};

// All checks of a level, those of the driver first, the others in the order of the case files; they do not depend on
// the device.
std::vector<Check> checks_of(Level level);
// Returns what is wrong with a case that was given by --case, as the error of that option.
UsageError case_error(const test::CaseError& error);
// The name of a pass and the words of a case. Throws UsageError.
Check check_of(const std::string& line);

// Keeps the checks whose names match the pattern, in which * stands for any text and ? for any character, and of these
// shard `index` (from 1) of `count`.
bool matches(std::string_view pattern, std::string_view name);
std::vector<Check> chosen(std::vector<Check> checks, const std::string& pattern, uint32_t index,
                          uint32_t count);

enum class Status { passed, failed, skipped };
struct Result {
    Status status = Status::skipped;
    std::string reason;                 // of a skip
    std::string note;                   // what was changed of the case for this device
    std::string kernel;                 // that was planned
    std::vector<std::string> failures;  // one line each
    double worst = 0;                   // the largest error as a part of what is allowed
    std::vector<test::Judged> judged;   // the errors
    bool only_inexact = false;          // all failures are errors beyond their bounds
    bool judged_by_seeds = false;       // of a random check: see run_random
    double seconds = 0;
    bool ran = false;                 // false: the run was interrupted before
    size_t runs = 0, wrong_runs = 0;  // of run_rounds: how often it was not skipped, and how often it failed
};

// A DeviceRun holds the checks that were asked for on one device, and their results.
struct DeviceRun {
    DeviceInfo device;
    std::vector<Check> checks;
    std::vector<Result> results;  // of each check
    bool interrupted = false;
    double seconds = 0;
    std::optional<size_t> rounds = std::nullopt;  // of run_rounds: how often all checks ran
    bool ends_in_round = false;                   // of run_rounds: some checks ran once more

    size_t count(Status status) const;
    // A run in which nothing passed has proved nothing.
    bool is_good() const { return !interrupted && count(Status::failed) == 0 && count(Status::passed) != 0; }
};

// One check. Does not throw: what goes wrong is the result. The device is opened again if it was lost.
class Worker {
  public:
    // A worker opens the device by its index, because two drivers may share a UUID.
    explicit Worker(uint32_t index) : index_(index) {}
    Result run(const Check& check);

  private:
    uint32_t index_;
    std::optional<test::Device> device_;
};

// How many checks to run at a time: pipelines are compiled and the oracle computes on the host.
uint32_t workers_for(const DeviceInfo& device);

// Running says how checks are run, and who hears of them. The functions are called by one worker at a time.
struct Running {
    bool until_failure = false;  // requests a stop once a check has failed
    bool in_turns = false;  // features take turns, so that a run that is cut short has had a check of each
    bool in_order = false;  // checks begin in their order: for rounds of the same ones
    uint32_t workers = 0;   // 0: workers_for() the device
    std::function<bool()> is_over = {};                          // asked before each check
    std::function<void(const Check&)> begins = {};               // called before each check
    std::function<void(const Check&, const Result&)> ends = {};  // called after it
};
DeviceRun run(const DeviceInfo& device, std::vector<Check> checks, const Running& running = {});
// Runs all checks, and then again, round after round, until the time is over. A check has failed if it has in any
// round; its result is that of the first such round.
DeviceRun run_rounds(const DeviceInfo& device, const std::vector<Check>& checks, double hours,
                     bool until_failure);

// Makes a failing case smaller, and `result` that of what is left: words are dropped and numbers are lowered as long
// as it fails.
void shrink(Worker& worker, Check& failing, Result& result);
// Checks of random problems until the time is over, made from `seed`: the same ones for the same seed.
Check random_check(uint64_t seed);
DeviceRun fuzz(const DeviceInfo& device, uint64_t seed, double seconds, bool until_failure = false);

}  // namespace vkattn::tools::conformance
