// The report as a page that stands on its own: what a user sends in.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "call.hpp"
#include "conformance_report.hpp"

namespace vkattn::tools::conformance {
namespace {

constexpr const char* style = R"(<style>
:root { color-scheme: light dark; --fg: #1b1f24; --bg: #fff; --soft: #6b7280; --line: #d7dbe0; --pass: #1a7f4b;
        --fail: #c22f2f; --skip: #8a8f98; --bar: #3b6fb6; --near: #b3760b; }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8eb; --bg: #14171b; --soft: #9aa2ad; --line: #333941; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--fg); background: var(--bg); max-width: 64em;
       margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.1em; margin-top: 2em; }
.soft { color: var(--soft); } .pass { color: var(--pass); } .fail { color: var(--fail); }
.numbers { display: flex; flex-wrap: wrap; gap: .5em 2.5em; margin: 1em 0; }
.numbers b { display: block; font-size: 2em; line-height: 1.1; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .25em .6em; text-align: left; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } td.cell { text-align: center; color: #fff;
     border: 2px solid var(--bg); font-variant-numeric: tabular-nums; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } .wide td:first-child { overflow-wrap: anywhere; min-width: 9em; }
pre { overflow-x: auto; border: 1px solid var(--line); padding: .7em; font-size: 13px; }
figure { margin: 1em 0; } .legend span { white-space: nowrap; margin-right: 1em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
svg { max-width: 40em; } svg text { fill: var(--fg); font-size: 12px; }
</style></head><body>
)";

// Red where anything failed, grey where nothing ran; else from green, no error, to amber, an error at its bound.
std::string colour_of(const Cell& cell) {
    if (cell.failed != 0) return "var(--fail)";
    if (cell.passed == 0) return "var(--skip)";
    return fmt::format("color-mix(in srgb, var(--near) {:.0f}%, var(--pass))",
                       100 * std::clamp(cell.worst, 0.0, 1.0));
}

std::string heat_map(const std::vector<Row>& rows) {
    std::vector<std::string> kernels, features;
    for (const Row& row : rows) {
        if (std::ranges::find(kernels, row.kernel) == kernels.end()) kernels.push_back(row.kernel);
        if (std::ranges::find(features, row.feature) == features.end()) features.push_back(row.feature);
    }
    std::string html =
        "<p class=\"soft\">A cell has the number of checks that passed. Green is no error, amber an error at "
        "its "
        "bound.</p>\n<div class=\"wide\"><table><tr><th>feature</th>";
    for (const std::string& kernel : kernels) html += fmt::format("<th>{}</th>", escaped(kernel));
    html += "</tr>\n";
    for (const std::string& feature : features) {
        html += fmt::format("<tr><td>{}</td>", escaped(feature));
        for (const std::string& kernel : kernels) {
            const auto at = std::ranges::find_if(
                rows, [&](const Row& row) { return row.feature == feature && row.kernel == kernel; });
            if (at == rows.end()) {
                html += "<td></td>";
                continue;
            }
            const Cell& c = at->cell;
            html += fmt::format(
                "<td class=\"cell\" style=\"background:{}\" title=\"{} passed, {} failed, {} skipped, "
                "worst error {:.3f} of its bound, {:.1f} s\">{}</td>",
                colour_of(c), c.passed, c.failed, c.skipped, c.worst, c.seconds,
                c.failed != 0   ? fmt::format("{} failed", c.failed)
                : c.passed == 0 ? "skipped"
                                : fmt::format("{}", c.passed));
        }
        html += "</tr>\n";
    }
    return html + "</table></div>\n";
}

// How near the worst error of each check came to its bound, in tenths of it; the last bar is of those beyond.
std::string distribution(const DeviceRun& run) {
    constexpr int bars = 11, width = 46, height = 120;
    size_t counts[bars] = {}, most = 1;
    for (const Result& r : run.results)
        if (r.ran && r.status != Status::skipped) {
            const bool beyond = r.status == Status::failed || r.worst > 1;
            const double tenth = beyond ? bars : std::min(std::floor(r.worst * 10), bars - 2.0);
            most = std::max(most, ++counts[static_cast<size_t>(std::clamp(tenth, 0.0, bars - 1.0))]);
        }
    std::string svg =
        fmt::format("<svg viewBox=\"0 0 {} {}\" width=\"100%\" role=\"img\">", bars * width, height + 34);
    for (int i = 0; i < bars; i++) {
        const double tall = height * static_cast<double>(counts[i]) / static_cast<double>(most);
        svg += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" height=\"{:.1f}\" fill=\"{}\"/>",
                           i * width + 4, height + 14 - tall, width - 8, tall,
                           i == bars - 1 ? "var(--fail)" : "var(--bar)");
        svg += fmt::format(
            "<text x=\"{0}\" y=\"{1:.1f}\" text-anchor=\"middle\">{2}</text>"
            "<text x=\"{0}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>",
            i * width + width / 2, height + 10 - tall, counts[i], height + 30,
            i == bars - 1 ? std::string("beyond") : fmt::format("{:.1f}", i / 10.0));
    }
    return svg + "</svg>\n";
}

std::string slowest(const DeviceRun& run) {
    constexpr size_t most = 12;
    std::vector<size_t> order;
    for (size_t i = 0; i < run.results.size(); i++)
        if (run.results[i].ran) order.push_back(i);
    std::ranges::sort(order,
                      [&](size_t a, size_t b) { return run.results[a].seconds > run.results[b].seconds; });
    if (order.size() > most) order.resize(most);
    std::string html = "<div class=\"wide\"><table><tr><th>check</th><th>kernel</th><th>seconds</th></tr>\n";
    for (const size_t i : order)
        html += fmt::format("<tr><td>{}</td><td>{}</td><td class=\"n\">{:.2f}</td></tr>\n",
                            escaped(run.checks[i].name), escaped(kernel_of(run.checks[i], run.results[i])),
                            run.results[i].seconds);
    return html + "</table></div>\n";
}

std::string failures(const DeviceRun& run) {
    std::string html;
    for (size_t i = 0; i < run.checks.size(); i++)
        if (!run.results[i].failures.empty())
            html +=
                fmt::format("<h3 class=\"fail\">{}</h3><pre>{}\n\n{}</pre>\n", escaped(run.checks[i].name),
                            escaped(fmt::format("{}", fmt::join(run.results[i].failures, "\n"))),
                            escaped(reproduction(run, run.checks[i])));
    return html.empty() ? "" : "<h2>Failures</h2>\n" + html;
}

}  // namespace

std::string profile_of(const DeviceInfo& device) {
    try {
        return device_profile(device.index);
    } catch (const RuntimeError& error) {
        return error.what();
    }
}

std::string html_head(const std::string& title) {
    return fmt::format(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n{}",
        escaped(title), style);
}

std::string html_overview(const DeviceRun& run) {
    const DeviceInfo& d = run.device;
    const size_t failed = run.count(Status::failed);
    std::string html =
        fmt::format("<h1>{}</h1><p class=\"soft\">{}, {}, Vulkan {}, vkattn {}</p>\n", escaped(d.name),
                    escaped(d.type), escaped(d.driver), version_text(d.api_version), vkattn_version());
    html += fmt::format(
        "<div class=\"numbers\"><div class=\"pass\"><b>{}</b>passed</div><div class=\"{}\"><b>{}</b>"
        "failed</div><div class=\"soft\"><b>{}</b>skipped</div><div><b>{:.0f}</b>seconds of "
        "checks</div></div>\n",
        run.count(Status::passed), failed != 0 ? "fail" : "soft", failed, run.count(Status::skipped),
        run.seconds);
    if (run.rounds) html += fmt::format("<p>All checks ran again and again{}.</p>\n", text_of_rounds(run));
    if (run.interrupted)
        html += fmt::format("<p class=\"fail\">Not all was run: {}.</p>\n", text_of_interruption(run));
    return html + failures(run);
}

std::string html_details(const DeviceRun& run) {
    std::string html = "<h2>Features and kernels</h2>\n" + heat_map(rows_of(run));
    for (const auto& [reason, count] : skip_reasons(run))
        html += fmt::format("<p class=\"soft\">skipped {}: {}</p>\n", count, escaped(reason));
    html += "<h2>The worst error of each check, as a part of its bound</h2>\n" + distribution(run);
    html += "<h2>Where the time went</h2>\n" + slowest(run);
    return html +
           fmt::format("<h2>What the device reports</h2>\n<pre>{}</pre>\n", escaped(profile_of(run.device)));
}

std::string to_html(const Report& report) {
    std::string html = html_head("vkattn conformance");
    for (const DeviceRun& run : report.devices) html += html_overview(run) + html_details(run);
    std::string what = "level " + report.level;
    if (report.seed != 0) what += fmt::format(", seed {}", report.seed);
    if (report.shard != "1/1") what += ", shard " + report.shard;
    if (report.filter != "*") what += ", checks named " + escaped(report.filter);
    return html +
           fmt::format("<p class=\"soft\">vkattn conformance, {}, {}</p></body></html>\n", what, report.date);
}

}  // namespace vkattn::tools::conformance
