#include "conformance_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "call.hpp"

namespace vkattn::tools::conformance {
namespace {

// For a POSIX shell.
std::string quoted(const std::string& text) {
    std::string all = "'";
    for (const char c : text) all += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return all + "'";
}

Json to_json(const DeviceRun& run, const Check& check, const Result& result) {
    Json all = {{"name", check.name},
                {"case", check.line()},
                {"status", result.ran ? name_of(result.status) : "not run"},
                {"kernel", kernel_of(check, result)},
                {"worst", number_or_text(result.worst)},
                {"seconds", result.seconds}};
    if (!result.reason.empty()) all["reason"] = result.reason;
    if (!result.note.empty()) all["note"] = result.note;
    if (run.rounds) all.update({{"runs", result.runs}, {"wrong", result.wrong_runs}});
    if (result.judged_by_seeds) all["judged_by_seeds"] = true;
    if (!result.failures.empty()) {
        all["failures"] = result.failures;
        all["reproduce"] = reproduction(run, check);
    }
    return all;
}

Json to_json(const DeviceRun& run) {
    const DeviceInfo& d = run.device;
    Json checks = Json::array();
    for (size_t i = 0; i < run.checks.size(); i++)
        checks.push_back(to_json(run, run.checks[i], run.results[i]));
    Json all = {{"device", d.name},
                {"uuid", d.uuid},
                {"driver", d.driver},
                {"type", d.type},
                {"vulkan", version_text(d.api_version)},
                {"passed", run.count(Status::passed)},
                {"failed", run.count(Status::failed)},
                {"skipped", run.count(Status::skipped)},
                {"interrupted", run.interrupted},
                {"seconds", run.seconds},
                {"checks", checks}};
    if (run.rounds) all.update({{"rounds", *run.rounds}, {"ends_in_round", run.ends_in_round}});
    return all;
}

}  // namespace

std::string escaped(const std::string& text) {
    std::string all;
    for (const char c : text) {
        if (c == '<')
            all += "&lt;";
        else if (c == '>')
            all += "&gt;";
        else if (c == '&')
            all += "&amp;";
        else if (c == '"')
            all += "&quot;";
        else if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
            all += ' ';
        else
            all += c;
    }
    return all;
}

Json number_or_text(double x) {
    return std::isfinite(x) ? Json(x) : Json("inf");
}

std::string kernel_of(const Check& check, const Result& result) {
    if (check.pass->is_of_driver) return "driver";  // it runs no kernel of the library
    return result.kernel.empty() ? check.c.kernel : result.kernel;
}

const char* name_of(Status status) {
    switch (status) {
        case Status::passed:
            return "passed";
        case Status::failed:
            return "failed";
        case Status::skipped:
            break;
    }
    return "skipped";
}

std::string reproduction(const DeviceRun& run, const Check& check) {
    return fmt::format("vkattn conformance --device {} --case {}", run.device.index, quoted(check.line()));
}

std::vector<Row> rows_of(const DeviceRun& run) {
    std::vector<Row> rows;
    for (size_t i = 0; i < run.checks.size(); i++) {
        const Result& r = run.results[i];
        if (!r.ran) continue;
        const std::string kernel = kernel_of(run.checks[i], r);
        auto at = std::ranges::find_if(rows, [&](const Row& row) {
            return row.feature == run.checks[i].feature && row.kernel == kernel;
        });
        if (at == rows.end()) at = rows.insert(rows.end(), {run.checks[i].feature, kernel, {}});
        Cell& cell = at->cell;
        cell.passed += r.status == Status::passed;
        cell.failed += r.status == Status::failed;
        cell.skipped += r.status == Status::skipped;
        cell.worst = std::max(cell.worst, r.worst);
        cell.seconds += r.seconds;
    }
    return rows;
}

std::map<std::string, size_t> skip_reasons(const DeviceRun& run) {
    std::map<std::string, size_t> reasons;
    for (const Result& r : run.results)
        if (r.ran && r.status == Status::skipped) reasons[r.reason]++;
    return reasons;
}

size_t not_run(const DeviceRun& run) {
    return run.results.size() - static_cast<size_t>(std::ranges::count_if(run.results, &Result::ran));
}

std::string text_of_interruption(const DeviceRun& run) {
    if (not_run(run) == 0)
        return run.rounds ? "there would have been more rounds" : "there would have been more problems";
    return fmt::format("{} of {} checks were not run", not_run(run), run.checks.size());
}

std::string text_of_rounds(const DeviceRun& run) {
    if (!run.rounds) return "";
    return fmt::format(", in {}{}", count_text(*run.rounds, "round"),
                       run.ends_in_round ? " and a part of one" : "");
}

void print_table(const DeviceRun& run) {
    fmt::print("{}  {}\n", run.device.name, run.device.driver);
    fmt::print("{:<44}{:<14}{:>7}{:>7}{:>8}{:>12}{:>9}\n", "feature", "kernel", "passed", "failed", "skipped",
               "worst/bound", "seconds");
    for (const auto& [feature, kernel, cell] : rows_of(run))
        fmt::print("{:<44}{:<14}{:>7}{:>7}{:>8}{:>12.3f}{:>9.1f}\n", feature, kernel, cell.passed,
                   cell.failed, cell.skipped, cell.worst, cell.seconds);
    for (const auto& [reason, count] : skip_reasons(run)) fmt::print("skipped {}: {}\n", count, reason);
    const auto changed = std::ranges::count_if(run.results, [](const Result& r) { return !r.note.empty(); });
    if (changed != 0)
        fmt::print(
            "changed {}: a workgroup of this device costs more than the limit of the case, which was "
            "raised\n",
            changed);
    const auto by_seeds = std::ranges::count_if(run.results, &Result::judged_by_seeds);
    if (by_seeds != 0)
        fmt::print("judged together with eight more seeds {}: an error was beyond its bound\n", by_seeds);
    for (size_t i = 0; i < run.checks.size(); i++) {
        if (run.results[i].failures.empty()) continue;
        fmt::print("FAILED {}\n", run.checks[i].name);
        for (const std::string& what : run.results[i].failures) fmt::print("    {}\n", what);
        fmt::print("    {}\n", reproduction(run, run.checks[i]));
    }
    if (run.interrupted) fmt::print("interrupted: {}\n", text_of_interruption(run));
    fmt::print("{} passed, {} failed, {} skipped in {:.1f} s{}\n", run.count(Status::passed),
               run.count(Status::failed), run.count(Status::skipped), run.seconds, text_of_rounds(run));
}

Json to_json(const Report& report) {
    Json devices = Json::array();
    for (const DeviceRun& run : report.devices) devices.push_back(to_json(run));
    return {{"tool", "vkattn"},    {"version", vkattn_version()}, {"level", report.level},
            {"seed", report.seed}, {"shard", report.shard},       {"filter", report.filter},
            {"date", report.date}, {"devices", devices}};
}

std::string to_junit(const Report& report) {
    std::string xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n";
    for (const DeviceRun& run : report.devices) {
        // A check that was not run counts as an error, so that a reader of the XML alone does not take an interrupted
        // run for one that passed.
        xml += fmt::format(
            "<testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" "
            "time=\"{:.3f}\">\n",
            escaped(run.device.name), run.checks.size(), run.count(Status::failed), not_run(run),
            run.count(Status::skipped), run.seconds);
        for (size_t i = 0; i < run.checks.size(); i++) {
            const Result& r = run.results[i];
            xml += fmt::format("<testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"",
                               escaped(run.checks[i].feature), escaped(run.checks[i].name), r.seconds);
            if (!r.ran) {
                xml += "><error message=\"not run\"/></testcase>\n";
            } else if (r.status == Status::passed) {
                xml += "/>\n";
            } else if (r.status == Status::skipped) {
                xml += fmt::format("><skipped message=\"{}\"/></testcase>\n", escaped(r.reason));
            } else {
                xml += fmt::format("><failure message=\"{}\">{}</failure></testcase>\n",
                                   escaped(r.failures.front()),
                                   escaped(fmt::format("{}\n{}", fmt::join(r.failures, "\n"),
                                                       reproduction(run, run.checks[i]))));
            }
        }
        xml += "</testsuite>\n";
    }
    return xml + "</testsuites>\n";
}

}  // namespace vkattn::tools::conformance
