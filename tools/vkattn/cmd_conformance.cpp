// vkattn conformance: proves a device right, or says where it is wrong.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>

#include "conformance_report.hpp"
#include "files.hpp"
#include "gpu/case_plan.hpp"
#include "interruption.hpp"
#include "numbers.hpp"
#include "paths.hpp"
#include "problem.hpp"
#include "usage.hpp"

namespace vkattn::tools {
namespace {

using namespace conformance;
namespace fs = std::filesystem;

struct Options {
    std::string level = "standard", filter = "*", shard = "1/1", device, json, junit, html, line;
    uint64_t seed = 1;
    double fuzz_seconds = 0, hours = 0;
    bool list = false, has_line = false, until_failure = false;
};

std::pair<uint32_t, uint32_t> parse_shard(const std::string& text) {
    uint32_t index = 0, count = 0;
    const char* const end = text.data() + text.size();
    const auto first = std::from_chars(text.data(), end, index);
    if (first.ec == std::errc{} && first.ptr != end && *first.ptr == '/') {
        const auto second = std::from_chars(first.ptr + 1, end, count);
        if (second.ec == std::errc{} && second.ptr == end && index >= 1 && index <= count)
            return {index, count};
    }
    throw UsageError("--shard", fmt::format("'{}' is not I/N with 1 <= I <= N", text));
}

std::vector<DeviceInfo> devices_of(const Options& options) {
    if (options.device != "all") {
        RuntimeOptions opened;
        opened.device = options.device;
        Runtime runtime(opened);
        require_execution(runtime);
        return {runtime.device()};
    }
    std::vector<DeviceInfo> usable;
    for (const DeviceInfo& device : list_devices())
        if (device.refusal.empty())
            usable.push_back(device);
        else
            fmt::print("not usable: {}: {}\n", device.name, device.refusal);
    if (usable.empty())
        throw RuntimeError("there is no usable Vulkan device on this machine" + device_hint());
    return usable;
}

constexpr uint32_t most_parts = 4096;   // of a combine: all of them are made on the host
constexpr double most_products = 1e11;  // of the oracle; more is refused

// Returns how many multiply-adds the oracle needs for the products, or for merging parts.
double oracle_products(const Check& check) {
    const test::Case& c = check.c;
    const VkattnProblem& p = c.problem;
    const double batches = c.far == test::Far::lse ? test::far_lse_batches : p.batch;
    const double rows = batches * p.num_heads_q * (double{1} * p.seqlen_q + c.company);
    if (check.pass->name == "combine") return rows * c.num_parts * p.head_dim_v;
    double keys = p.seqlen_kv;
    if (p.window_left >= 0 && p.window_right >= 0)
        keys = std::min(keys, static_cast<double>(p.window_left) + static_cast<double>(p.window_right) + 1);
    constexpr double backward_products = 5.0 / 2;  // of the forward's
    return rows * keys * (double{1} * p.head_dim_qk + p.head_dim_v) *
           (check.pass->backward ? backward_products : 1);
}

// Throws where the host would compute or hold too much.
void check_size(const Check& check) {
    const double products = oracle_products(check);
    if (products > most_products)
        throw UsageError(
            "--case", fmt::format("the oracle would need {:.2g} multiply-adds; the most is {:.2g}", products,
                                  most_products));
    constexpr double most_elements = 1e9;  // of all parts, which are made on the host
    if (check.pass->name == "combine" && products > most_elements)
        throw UsageError("--case", fmt::format("the parts have over {:.0g} elements", most_elements));
    constexpr uint32_t most_nonfinite = 4096;  // for which there is a table of rows by keys
    const VkattnProblem& p = check.c.problem;
    if (check.c.nonfinite && std::max(p.seqlen_q, p.seqlen_kv) > most_nonfinite)
        throw UsageError("--case", fmt::format("nonfinite is for sequences of {} at most", most_nonfinite));
}

// Throws where the library knows no such kernel, on whatever device.
void check_kernel(const Check& check) {
    const auto plan = test::core_plan_of({}, check.c, check.pass->backward);
    if (!plan && plan.failure().status == VKATTN_INVALID_ARGUMENT && plan.failure().field == "options.kernel")
        throw UsageError("--case", plan.failure().message);
}

// A case that somebody has written is refused if it is no problem of vkattn's, or needs more than the oracle can hold.
Check given_check(const std::string& line) {
    const Check check = check_of(line);
    if (check.pass->is_of_driver) return check;
    const bool is_forward = check.pass->name == "forward", is_backward = check.pass->name == "backward";
    const bool is_combine = check.pass->name == "combine", is_far = check.c.far != test::Far::none;
    if (is_far && !is_forward && !is_combine)
        throw UsageError("--case", "far is of forward cases and combines");
    if (is_far && is_combine != (check.c.far == test::Far::part))
        throw UsageError("--case", "far=part is of combines, and what else may be far is of forward cases");
    if (check.c.nonfinite && !is_forward && !is_backward && !is_combine)
        throw UsageError("--case", "nonfinite is of forward and backward cases, and of combines");
    if (check.c.num_parts != 1 && !is_combine) throw UsageError("--case", "parts are of combines");
    if (check.c.company != 0 && !is_forward) throw UsageError("--case", "company is of forward cases");
    if (check.c.num_parts == 0 || check.c.num_parts > most_parts)
        throw UsageError("--case",
                         fmt::format("parts={} is not within 1 .. {}", check.c.num_parts, most_parts));
    if (const auto problem = core::resolve(check.c.problem); !problem)
        throw UsageError("--case", fmt::format("{}: {}", problem.failure().field, problem.failure().message));
    check_kernel(check);
    check_size(check);
    if (check.c.far != test::Far::none) return check;  // its tensors are made without what lies between
    try {
        for (int tensor = 0; tensor < 4; tensor++) test::tensor_of(check.c, tensor);
    } catch (const test::CaseError& error) {
        throw case_error(error);
    }
    return check;
}

std::string date_now() {
    const std::time_t now = std::time(nullptr);
    std::string text(64, ' ');
    text.resize(std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M UTC", std::gmtime(&now)));
    return text;
}

std::vector<Check> checks_for(const Options& options) {
    if (options.has_line) return {given_check(options.line)};
    const auto [index, count] = parse_shard(options.shard);
    std::vector<Check> checks = chosen(checks_of(parse_level(options.level)), options.filter, index, count);
    if (checks.empty())
        throw UsageError("--filter",
                         fmt::format("no check of level {} and shard {} matches '{}'; --list shows them",
                                     options.level, options.shard, options.filter));
    return checks;
}

// Before minutes of work: can its results be written? What is there stays, for as long as there are none.
void check_writable(const Options& options) {
    std::map<fs::path, const char*> earlier;
    for (const auto& [option, path] :
         {std::pair{"--json", options.json}, {"--junit", options.junit}, {"--report", options.html}}) {
        if (path.empty()) continue;
        const auto [at, is_new] = earlier.try_emplace(fs::absolute(path_of(path)).lexically_normal(), option);
        if (!is_new) throw UsageError(option, fmt::format("is the same file as {}", at->second));
        tools::check_writable(option, path);
    }
}

void write_reports(const Options& options, const Report& report) {
    if (!options.json.empty()) write_text("--json", options.json, to_json(report).dump() + "\n");
    if (!options.junit.empty()) write_text("--junit", options.junit, to_junit(report));
    if (!options.html.empty()) write_text("--report", options.html, to_html(report));
}

DeviceRun run_on(const DeviceInfo& device, const Options& options, const std::vector<Check>& checks) {
    if (options.fuzz_seconds > 0)
        return fuzz(device, options.seed, options.fuzz_seconds, options.until_failure);
    if (options.hours > 0) return run_rounds(device, checks, options.hours, options.until_failure);
    return conformance::run(device, checks, {.until_failure = options.until_failure});
}

void run(const Options& options) {
    if (options.list) {
        for (const Check& check : checks_for(options)) fmt::print("{}\n", check.name);
        return;
    }
    const bool fuzzes = options.fuzz_seconds > 0;
    const std::vector<Check> checks = fuzzes ? std::vector<Check>() : checks_for(options);
    check_writable(options);
    stop_on_signals(
        "\nfinishing the checks under way; the same signal again ends the program at once, without a "
        "report\n");
    std::vector<DeviceRun> runs;
    Report report{fuzzes             ? "fuzz"
                  : options.has_line ? "case"
                                     : options.level,
                  fuzzes ? options.seed : 0,
                  options.shard,
                  options.filter,
                  date_now(),
                  {}};
    bool good = true;
    for (const DeviceInfo& device : devices_of(options)) {
        if (stop_requested())
            runs.push_back(
                DeviceRun{device, checks, std::vector<conformance::Result>(checks.size()), true, 0});
        else
            runs.push_back(run_on(device, options, checks));
        print_table(runs.back());
        std::fflush(stdout);
        good = good && runs.back().is_good();
        // After each device: what ends the process at the next one loses nothing of this one.
        report.devices = runs;
        write_reports(options, report);
    }
    if (!good) throw ExitCode{exit_not_right};
}

}  // namespace

void add_conformance(CLI::App& app) {
    CLI::App* sub = app.add_subcommand("conformance",
                                       "Proves a device right: features of its driver, each kernel against "
                                       "an fp64 oracle, promises about running");
    auto options = std::make_shared<Options>();
    auto* level =
        sub->add_option("--level", options->level,
                        "smoke: a small case of each feature; standard; full: each case on each kernel");
    auto* filter = sub->add_option("--filter", options->filter,
                                   "Runs the checks with such names; * and ? stand for any text");
    auto* list = sub->add_flag("--list", options->list, "Prints the names of the checks and runs none");
    auto* shard = sub->add_option("--shard", options->shard, "I/N: every Nth check, beginning with the Ith");
    auto* line = sub->add_option(
        "--case", options->line,
        "Runs one case: forward, backward, combine or a promise, and its words; or a driver check");
    sub->add_flag("--until-failure", options->until_failure, "Begins no further check once one has failed");
    auto* fuzz_for =
        sub->add_option("--fuzz", options->fuzz_seconds, "Runs random problems for so many seconds")
            ->transform(real_validator<double>())
            ->check(CLI::PositiveNumber);
    sub->add_option("--seed", options->seed, "Of --fuzz: the same seed makes the same problems")
        ->transform(count_validator(std::numeric_limits<int64_t>::max()))
        ->needs(fuzz_for);
    auto* hours =
        sub->add_option(
               "--hours", options->hours,
               "Runs the checks again and again for so many hours, or until a failure if that is asked for")
            ->transform(real_validator<double>())
            ->check(CLI::PositiveNumber);
    auto* device = sub->add_option("--device", options->device,
                                   "Index, UUID or part of the name; all: one after the other");
    auto* json = sub->add_option("--json", options->json, "Writes the results to this file as JSON");
    auto* junit = sub->add_option("--junit", options->junit, "Writes them as JUnit XML");
    auto* page = sub->add_option("--report", options->html, "Writes them as one HTML page, to be sent in");
    fuzz_for->excludes(line)->excludes(list)->excludes(hours);
    hours->excludes(list);
    for (CLI::Option* of_run : {device, json, junit, page}) of_run->excludes(list);
    sub->footer("Ends with exit code 4 if a check failed, if none passed, or if the run was interrupted.");
    for (CLI::Option* chooses : {level, filter, shard}) chooses->excludes(line)->excludes(fuzz_for);
    sub->callback([options, line, fuzz_for, hours, json, junit, page] {
        for (CLI::Option* file : {json, junit, page})
            if (file->count() != 0 && file->as<std::string>().empty())
                throw UsageError(file->get_name(), "is not the name of a file");
        if (fuzz_for->count() != 0 && std::isnan(options->fuzz_seconds))
            throw UsageError("--fuzz", "is not a number of seconds");
        if (hours->count() != 0 && !std::isfinite(options->hours))
            throw UsageError("--hours", "is not a number of hours");
        options->has_line = line->count() != 0;
        run(*options);
    });
}

}  // namespace vkattn::tools
