#include "bench_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

#include "progress.hpp"

namespace vkattn::tools {
namespace {

// Medians of one binary in different processes differ by this much, whatever the spread within each: a device has
// other clocks and temperatures each time.
constexpr double least_noise = 0.015;

std::string name_of(const Json& result) {
    return result.value("name", "");
}

// The distance of the quartiles, as a part of the median.
double spread(const Json& time) {
    return (time["upper"].get<double>() - time["lower"].get<double>()) / time["median"].get<double>();
}

bool is_time(const Json& time) {
    return time.is_object() &&
           std::ranges::all_of(std::array{"median", "lower", "upper"},
                               [&](const char* key) { return time.contains(key) && time[key].is_number(); });
}

std::string cell(const Json& value) {
    if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
    return value.is_string() ? value.get<std::string>() : value.dump();
}

// A cell of CSV (RFC 4180).
std::string quoted(std::string text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
    return '"' + text + '"';
}

}  // namespace

Json time_json(const Timing& time) {
    std::vector<double> ms = time.ms;
    std::ranges::sort(ms);
    return {{"median", median(ms)},
            {"min", ms.front()},
            {"max", ms.back()},
            {"lower", ms[ms.size() / 4]},
            {"upper", ms[ms.size() - 1 - ms.size() / 4]},
            {"blocks", ms.size()},
            {"runs_in_block", time.runs_in_block}};
}

Results::Results(bool json, bool csv, const std::string& compared) : json_(json), csv_(csv), path_(compared) {
    if (!compares()) return;
    std::ifstream file(path_);
    if (!file) throw UsageError("--compare", "cannot read " + path_);
    earlier_ = Json::parse(file, nullptr, false);
    const bool is_result = earlier_.is_object() && earlier_.value("tool", "") == "vkattn";
    if (is_result && earlier_.contains("cases"))
        for (const Json& result : earlier_["cases"]) by_name_[name_of(result)] = result;
    else if (is_result)
        by_name_[""] = earlier_;
    std::erase_if(by_name_, [](const auto& each) {
        return !each.second.contains("time_ms") || !is_time(each.second["time_ms"]);
    });
    if (by_name_.empty())
        throw UsageError("--compare", path_ + " has no times of this version's `vkattn bench --json`");
}

void Results::require_alike(const Json& call, const Json& problem) const {
    if (!compares()) return;
    const auto require = [&](const char* what, const Json& then, const Json& now) {
        if (then != now)
            throw UsageError("--compare",
                             fmt::format("{} has {} {}, and this is {}", path_, what, cell(then), cell(now)));
    };
    for (const char* key : {"device", "suite", "pass", "dtype"})
        require(key, earlier_.value(key, Json()), call.value(key, Json()));
    if (problem.is_object())
        for (const auto& [key, value] : problem.items())
            require(key.c_str(), earlier_["problem"].value(key, Json()), value);
}

bool Results::compare(Json& result) const {
    const auto found = by_name_.find(name_of(result));
    if (!compares() || found == by_name_.end()) return false;
    const Json &then = found->second["time_ms"], &now = result["time_ms"];
    const double ratio = then["median"].get<double>() / now["median"].get<double>();
    const double noise = std::max(least_noise, spread(then) + spread(now));
    const bool is_beyond = std::abs(std::log(ratio)) > std::log1p(noise);
    result["compared"] = {{"earlier_ms", then["median"]},
                          {"ratio", ratio},
                          {"noise", noise},
                          {"verdict", !is_beyond  ? "equal"
                                      : ratio > 1 ? "faster"
                                                  : "slower"}};
    return is_beyond;
}

Json Results::nearer(const Json& first, const Json& second) {
    const auto distance = [](const Json& r) {
        return std::abs(std::log(r["compared"]["ratio"].get<double>()));
    };
    return distance(first) < distance(second) ? first : second;
}

void Results::print_csv(const Json& result) {
    std::vector<std::pair<const char*, Json>> cells{{"case", name_of(result)}};
    const Json time = result.value("time_ms", Json::object());
    for (const char* key : {"median", "min", "max"}) cells.emplace_back(key, time.value(key, Json("")));
    for (const char* key : {"tflops", "gbps", "kernel", "tuning_row", "refused"})
        cells.emplace_back(key, result.value(key, Json("")));
    if (compares())
        for (const char* key : {"earlier_ms", "ratio", "noise", "verdict"})
            cells.emplace_back(key, result.value("compared", Json::object()).value(key, Json("")));
    std::string head, line;
    for (const auto& [name, value] : cells) {
        const bool is_time = time.contains(name) || std::string_view(name) == "median";
        head += fmt::format("{}{}{}", head.empty() ? "" : ",", name, is_time ? "_ms" : "");
        line += (head.size() == std::string_view(name).size() ? "" : ",") + quoted(cell(value));
    }
    if (!has_head_) print_row(head);
    has_head_ = true;
    print_row(line);
}

Json Results::summary(const Json& results) const {
    std::vector<double> ratios;
    Json out{{"faster", 0}, {"slower", 0}, {"equal", 0}};
    for (const Json& result : results)
        if (result.contains("compared")) {
            ratios.push_back(result["compared"]["ratio"]);
            Json& count = out[result["compared"]["verdict"].get<std::string>()];
            count = count.get<int>() + 1;
        }
    out["missing"] = results.size() - ratios.size();
    out["median_ratio"] = ratios.empty() ? Json() : Json(median(ratios));
    return out;
}

void Results::finish(const Json& results, bool rows) const {
    if (!compares()) return;
    const Json all = summary(results);
    if (rows) {
        print_row(fmt::format("{:32} {:>10} {:>10} {:>7} {:>7}  verdict", "compared", "then, ms", "now, ms",
                              "ratio", "noise"));
        for (const Json& r : results) {
            const Json c = r.value("compared", Json());
            if (c.is_null())
                print_row(fmt::format("{:32} {}", name_of(r),
                                      r.contains("refused") ? "is refused" : "is not in the file"));
            else
                print_row(fmt::format("{:32} {:10.4f} {:10.4f} {:7.3f} {:6.1f} %  {}", name_of(r),
                                      c["earlier_ms"].get<double>(), r["time_ms"]["median"].get<double>(),
                                      c["ratio"].get<double>(), 100 * c["noise"].get<double>(),
                                      c["verdict"].get<std::string>()));
        }
        print_row(fmt::format(
            "{} slower, {} faster, {} equal, {} not compared; median ratio {}", all["slower"].dump(),
            all["faster"].dump(), all["equal"].dump(), all["missing"].dump(),
            all["median_ratio"].is_null() ? "none"
                                          : fmt::format("{:.3f}", all["median_ratio"].get<double>())));
    }
    if (all["slower"] != 0) throw ExitCode{exit_slower};
}

}  // namespace vkattn::tools
