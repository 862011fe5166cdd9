#include "bench_results.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "paths.hpp"
#include "progress.hpp"

namespace vkattn::tools {
namespace {

// Medians of one binary in different processes differ by this much, whatever the spread within each: a device has
// other clocks and temperatures each time. On an H200 the most was 1.0 % in 36 cases.
constexpr double least_noise = 0.015;

std::string name_of(const Json& result) {
    return result.value("name", "");
}

// Returns the standard error of the median of so many blocks, as a part of the median. Normal times whose standard
// deviation is s have quartiles 1.349 s apart, and a median of n of them has an error of 1.253 s / sqrt(n). The
// quartiles of a few blocks say little, so their range takes the place of the distance.
double error_of_median(const Json& time) {
    constexpr uint64_t few_blocks = 8;
    const uint64_t blocks = time["blocks"];
    const auto [lower, upper] = blocks < few_blocks ? std::pair("min", "max") : std::pair("lower", "upper");
    const double distance = time[upper].get<double>() - time[lower].get<double>();
    return 1.253 / 1.349 * distance / std::sqrt(static_cast<double>(blocks)) / time["median"].get<double>();
}

// Two equal programs would differ by more than three standard errors in one case of 370. std::hypot() would need
// glibc 2.35.
double noise_of(const Json& then, const Json& now) {
    const double a = error_of_median(then), b = error_of_median(now);
    return std::max(least_noise, 3 * std::sqrt(a * a + b * b));
}

// True for the times of enough blocks, in their order.
bool is_time(const Json& time) {
    if (!time.is_object() || !time.value("blocks", Json()).is_number_unsigned()) return false;
    double before = 0;
    for (const char* key : {"min", "lower", "median", "upper", "max"}) {
        const Json value = time.value(key, Json());
        if (!value.is_number() || value < before) return false;
        before = value;
    }
    constexpr double least_ms = 1e-9, most_ms = 1e12;  // ratios of others would not be numbers
    return time["blocks"] >= least_compared_blocks && time["min"] >= least_ms && time["max"] <= most_ms;
}

// Returns a member that should be an object, or an empty one.
Json object_in(const Json& all, const char* key) {
    const Json found = all.value(key, Json());
    return found.is_object() ? found : Json::object();
}

std::string cell(const Json& value) {
    if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
    return value.is_string() ? value.get<std::string>() : value.is_null() ? "none" : value.dump();
}

// A cell of CSV (RFC 4180).
std::string quoted(std::string text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    for (size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
    return '"' + text + '"';
}

// The results of a file that have times, by name.
std::map<std::string, Json> read_results(const Json& file) {
    std::map<std::string, Json> found;
    if (file.at("tool") != "vkattn") return found;
    const Json all = file.contains("cases") ? file["cases"] : Json::array({file});
    for (const Json& result : all)
        if (result.contains("time_ms") && is_time(result["time_ms"])) found[name_of(result)] = result;
    return found;
}

void print_comparison(const Json& r) {
    const Json c = r.value("compared", Json::object());
    if (c.contains("ratio"))
        print_row(fmt::format("{:32} {:10.4f} {:10.4f} {:7.3f} {:6.1f} %  {}", name_of(r),
                              c["earlier_ms"].get<double>(), r["time_ms"]["median"].get<double>(),
                              c["ratio"].get<double>(), 100 * c["noise"].get<double>(),
                              c["verdict"].get<std::string>()));
    else
        print_row(fmt::format("{:32} {}", name_of(r), c.value("verdict", "new")));
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
    std::ifstream file(path_of(path_));
    if (!file) throw UsageError("--compare", "cannot read " + path_);
    try {
        earlier_ = Json::parse(file);
        by_name_ = read_results(earlier_);
    } catch (const Json::exception&) {
        by_name_.clear();
    }
    if (by_name_.empty())
        throw UsageError(
            "--compare",
            fmt::format("{} has no times of {} blocks or more by this version's `vkattn bench --json`", path_,
                        least_compared_blocks));
}

void Results::require_alike(const Json& call, const Json& problems) const {
    if (!compares()) return;
    const auto require = [&](const std::string& what, const Json& then, const Json& now) {
        if (then != now)
            throw UsageError("--compare",
                             fmt::format("{} has {} {}, and this is {}", path_, what, cell(then), cell(now)));
    };
    for (const char* key : {"device", "suite", "pass", "dtype"})
        require(key, earlier_.value(key, Json()), call.value(key, Json()));
    const Json options = object_in(earlier_, "options");
    for (const char* key : {"kv_lengths", "mask_fill", "block_map"})
        require(key, options.value(key, Json()), call["options"].value(key, Json()));
    bool has_any = false;
    for (const auto& [name, problem] : problems.items()) {
        const auto found = by_name_.find(name);
        if (found == by_name_.end()) continue;
        has_any = true;
        const Json then = object_in(found->second, "problem");
        for (const auto& [key, value] : problem.items())
            require(name.empty() ? key : name + ": " + key, then.value(key, Json()), value);
    }
    if (!has_any) throw UsageError("--compare", path_ + " has none of these cases");
}

bool Results::compare(Json& result) const {
    const auto found = by_name_.find(name_of(result));
    if (!compares() || found == by_name_.end()) return false;
    if (result.contains("refused")) {
        result["compared"] = {{"verdict", "refused"}};
        return false;
    }
    const Json &then = found->second["time_ms"], &now = result["time_ms"];
    if (!is_time(now)) return false;
    const double ratio = then["median"].get<double>() / now["median"].get<double>();
    const double noise = noise_of(then, now);
    const bool is_beyond = std::abs(std::log(ratio)) > std::log1p(noise);
    result["compared"] = {{"earlier_ms", then["median"]},
                          {"ratio", ratio},
                          {"noise", noise},
                          {"verdict", !is_beyond  ? "equal"
                                      : ratio > 1 ? "faster"
                                                  : "slower"}};
    return is_beyond;
}

bool is_nearer(const Json& a, const Json& b) {
    const auto distance = [](const Json& r) {
        return std::abs(std::log(r["compared"]["ratio"].get<double>()));
    };
    return distance(a) < distance(b);
}

void Results::print_csv(const Json& result) {
    std::vector<std::string> names{"case"}, cells{quoted(name_of(result))};
    const auto add = [&](const Json& of, const char* key, const std::string& name) {
        names.push_back(name);
        cells.push_back(quoted(cell(of.value(key, Json("")))));
    };
    for (const char* key : {"median", "min", "max"})
        add(result.value("time_ms", Json::object()), key, fmt::format("{}_ms", key));
    for (const char* key : {"tflops", "gbps", "kernel", "tuning_row", "refused"}) add(result, key, key);
    if (compares())
        for (const char* key : {"earlier_ms", "ratio", "noise", "verdict"})
            add(result.value("compared", Json::object()), key, key);
    if (!has_head_) print_row(fmt::format("{}", fmt::join(names, ",")));
    has_head_ = true;
    print_row(fmt::format("{}", fmt::join(cells, ",")));
}

Json Results::summary(const Json& results) const {
    std::map<std::string, int> counts{{"faster", 0}, {"slower", 0}, {"equal", 0}, {"refused", 0}, {"new", 0}};
    std::vector<double> ratios;
    for (const Json& result : results) {
        const Json compared = result.value("compared", Json::object());
        counts[compared.value("verdict", "new")]++;
        if (compared.contains("ratio")) ratios.push_back(compared["ratio"]);
    }
    Json out(counts);
    out["gone"] = by_name_.size() + static_cast<size_t>(counts["new"]) - results.size();
    out["median_ratio"] = ratios.empty() ? Json() : Json(median(ratios));
    return out;
}

void Results::finish(const Json& results) const {
    if (!compares()) return;
    const Json all = summary(results);
    if (!json_ && !csv_) {
        print_row(fmt::format("{:32} {:>10} {:>10} {:>7} {:>8}  verdict", "compared", "then, ms", "now, ms",
                              "ratio", "noise"));
        for (const Json& result : results) print_comparison(result);
        const Json& ratio = all["median_ratio"];
        print_row(fmt::format("{} slower, {} faster, {} equal, {} refused, {} new, {} gone; median ratio {}",
                              all["slower"].dump(), all["faster"].dump(), all["equal"].dump(),
                              all["refused"].dump(), all["new"].dump(), all["gone"].dump(),
                              ratio.is_null() ? "none" : fmt::format("{:.3f}", ratio.get<double>())));
    }
    if (all["slower"] != 0 || all["refused"] != 0) throw ExitCode{exit_slower};
}

}  // namespace vkattn::tools
