#include "report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bench_page.hpp"
#include "call.hpp"
#include "conformance_report.hpp"

namespace vkattn::tools::report {
namespace {

using conformance::Check;
using conformance::DeviceRun;
using conformance::escaped;
using conformance::Result;
using conformance::Status;

// Returns what is found as one run, whose failures say how often they came.
DeviceRun as_run(const Found& found, const std::vector<Check>& checks, const DeviceInfo& device) {
    DeviceRun run{device, checks, {}, false, 0};
    for (const Check& check : checks) {
        const auto at = found.tried.find(check.name);
        Result result = at == found.tried.end() ? Result{} : at->second.result;
        if (at != found.tried.end() && at->second.wrong != 0)
            result.failures.insert(result.failures.begin(), fmt::format("wrong in {} of {}", at->second.wrong,
                                                                        count_text(at->second.runs, "run")));
        if (std::ranges::count(found.ended, check.name) != 0) {
            result.ran = true;
            result.status = Status::failed;
            result.failures = {"the program ended while nothing but this check ran"};
        }
        run.seconds += result.seconds;
        run.interrupted = run.interrupted || !result.ran;
        run.results.push_back(std::move(result));
    }
    return run;
}

std::vector<Json> cases_of(const Found& found) {
    std::vector<Json> cases;
    for (const auto& [name, result] : found.benched) cases.push_back(result);
    return cases;
}

size_t wrong_cases(const Found& found) {
    return static_cast<size_t>(std::ranges::count_if(
        found.benched, [](const auto& named) { return named.second.contains("wrong"); }));
}

// Checks that are wrong each time and those that are wrong now and then point to different faults.
std::string verdict(const DeviceRun& run, const Found& found) {
    size_t always = 0, sometimes = 0, runs = 0;
    for (const auto& [name, tried] : found.tried) {
        runs += tried.result.status == Status::skipped ? 0 : tried.runs;
        always += tried.wrong != 0 && tried.wrong == tried.runs;
        sometimes += tried.wrong != 0 && tried.wrong != tried.runs;
    }
    std::string text = fmt::format("{} of {} checks", count_text(runs, "run"),
                                   run.count(Status::passed) + run.count(Status::failed));
    if (always + sometimes + found.ended.size() + wrong_cases(found) == 0)
        return text + ", and nothing was wrong.";
    if (always != 0) text += fmt::format("; {} wrong each time", always);
    if (sometimes != 0) text += fmt::format("; {} wrong now and then, as of a race", sometimes);
    if (wrong_cases(found) != 0)
        text += fmt::format("; {} went wrong", count_text(wrong_cases(found), "case that was benched",
                                                          "cases that were benched"));
    if (!found.ended.empty()) text += fmt::format("; the program ended in {}", fmt::join(found.ended, ", "));
    return text + ".";
}

Json to_json(const DeviceRun& run, const Found& found, size_t i) {
    const Result& result = run.results[i];
    Json all = {{"name", run.checks[i].name},
                {"status", result.ran ? conformance::name_of(result.status) : "not run"},
                {"kernel", result.kernel},
                {"worst", conformance::number_or_text(result.worst)}};
    if (const auto at = found.tried.find(run.checks[i].name); at != found.tried.end())
        all.update({{"runs", at->second.runs}, {"wrong", at->second.wrong}});
    if (!result.reason.empty()) all["reason"] = result.reason;
    if (!result.failures.empty()) all["failures"] = result.failures;
    return all;
}

}  // namespace

Json to_json(const Found& found, const std::vector<Check>& checks) {
    const DeviceRun run = as_run(found, checks, {});
    Json all = {{"report", 1}, {"device", found.device}, {"summary", Json::object()}};
    all["summary"] = {{"passed", run.count(Status::passed)},   {"failed", run.count(Status::failed)},
                      {"skipped", run.count(Status::skipped)}, {"not_run", conformance::not_run(run)},
                      {"bench_wrong", wrong_cases(found)},     {"verdict", verdict(run, found)}};
    all["ceilings"] = found.ceilings;
    all["ended"] = found.ended;
    all["bench"] = Json::array();
    for (const auto& [name, result] : found.benched) all["bench"].push_back(result);
    all["checks"] = Json::array();
    for (size_t i = 0; i < run.checks.size(); i++) all["checks"].push_back(to_json(run, found, i));
    return all;
}

std::string to_html(const Found& found, const std::vector<Check>& checks, const DeviceInfo& device) {
    const DeviceRun run = as_run(found, checks, device);
    std::string html = conformance::html_head("vkattn on " + device.name) + conformance::html_overview(run);
    html += fmt::format("<p>{}</p>\n", escaped(verdict(run, found)));
    if (!found.benched.empty() && !found.ceilings.is_null())
        html += "<h2>How fast</h2>\n" + bench_section({{"", cases_of(found)}}, found.ceilings);
    html += conformance::html_details(run);
    // In the page a < of a string could end the element.
    Json all = to_json(found, checks);
    all["profile"] = conformance::profile_of(device);
    std::string json = all.dump(-1, ' ', false, Json::error_handler_t::replace);
    for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) json.replace(at, 1, "\\u003c");
    return html + fmt::format(
                      "<script type=\"application/json\" id=\"vkattn-report\">{}</script>\n"
                      "<p class=\"soft\">vkattn report. All of it stands in this page as JSON, too.</p>"
                      "</body></html>\n",
                      json);
}

}  // namespace vkattn::tools::report
