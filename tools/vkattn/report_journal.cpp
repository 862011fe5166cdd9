#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "conformance_report.hpp"
#include "paths.hpp"
#include "report.hpp"

namespace vkattn::tools::report {
namespace {

using conformance::Result;
using conformance::Status;

Json line_of(const std::string& check, const Result& result) {
    Json line = {{"ends", check},
                 {"status", conformance::name_of(result.status)},
                 {"kernel", result.kernel},
                 {"worst", conformance::number_or_text(result.worst)},
                 {"seconds", result.seconds}};
    if (!result.reason.empty()) line["reason"] = result.reason;
    if (!result.failures.empty()) line["failures"] = result.failures;
    return line;
}

Result result_of_line(const Json& line) {
    Result result;
    const std::string status = line.at("status");
    result.status = status == "passed"   ? Status::passed
                    : status == "failed" ? Status::failed
                                         : Status::skipped;
    result.kernel = line.at("kernel");
    result.worst =
        line.at("worst").is_number() ? line["worst"].get<double>() : std::numeric_limits<double>::infinity();
    result.seconds = line.at("seconds");
    result.reason = line.value("reason", "");
    result.failures = line.value("failures", std::vector<std::string>());
    result.ran = true;
    return result;
}

}  // namespace

void Tried::add(const Result& more) {
    const double worst = std::max(result.worst, more.worst), seconds = result.seconds + more.seconds;
    const bool is_wrong = more.status == Status::failed;
    if (runs == 0 || (is_wrong && wrong == 0)) result = more;
    result.worst = worst;
    result.seconds = seconds;
    runs++;
    wrong += is_wrong;
}

Journal::Journal(std::string path, const Json& device, const std::string& uuid) : path_(std::move(path)) {
    found_.device = device;
    const Json head = {{"journal", 1}, {"device", device}, {"uuid", uuid}};
    std::ifstream earlier(path_of(path_), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(earlier), {}};
    // Only whole lines count: the last one may have been cut off.
    const size_t whole = text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1;
    if (!text.empty()) read(text.substr(0, whole), head);
    std::error_code failed;
    if (whole < text.size()) std::filesystem::resize_file(path_of(path_), whole, failed);
    file_.open(path_of(path_), std::ios::binary | std::ios::app);
    if (!file_ || failed) throw UsageError("--out", fmt::format("{} cannot be written", path_));
    if (whole == 0) write(head);
}

void Journal::read(const std::string& text, const Json& head) {
    bool is_head = true;
    try {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line); is_head = false) {
            const Json entry = Json::parse(line);
            if (!is_head)
                take(entry);
            else if (entry.at("journal") != head.at("journal"))
                throw std::invalid_argument("another form");
            else if (entry != head)
                throw UsageError(
                    "--out",
                    fmt::format("{} is of another device, driver or version; --new begins anew", path_));
        }
    } catch (const Json::exception&) {
        is_head = true;
    } catch (const std::invalid_argument&) {
        is_head = true;
    }
    if (is_head)
        throw UsageError("--out", fmt::format("{} is no journal of vkattn; --new begins anew", path_));
    found_.ended.assign(begun_alone_.begin(), begun_alone_.end());
}

void Journal::take(const Json& line) {
    if (line.contains("begins")) {
        begun_.insert(line["begins"].get<std::string>());
        if (line.at("alone")) begun_alone_.insert(line["begins"].get<std::string>());
    } else if (line.contains("stops")) {
        begun_.erase(line["stops"].get<std::string>());
        begun_alone_.erase(line["stops"].get<std::string>());
    } else if (line.contains("ends")) {
        const std::string check = line["ends"];
        begun_.erase(check);
        begun_alone_.erase(check);
        found_.tried[check].add(result_of_line(line));
    } else if (line.contains("ceilings")) {
        found_.ceilings = line["ceilings"];
    } else if (line.contains("bench")) {
        const std::string name = line["bench"].at("name");
        begun_.erase(name);
        begun_alone_.erase(name);
        found_.benched[name] = line["bench"];
    } else {
        throw std::invalid_argument("another line");
    }
}

// The line is in the file when this returns, whatever becomes of the process.
void Journal::write(const Json& line) {
    file_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
    if (!file_) throw UsageError("--out", fmt::format("{} cannot be written", path_));
}

std::set<std::string> Journal::suspects() const {
    std::set<std::string> all = begun_;
    for (const std::string& check : begun_alone_) all.erase(check);
    return all;
}

void Journal::begins(const std::string& check_or_case, bool alone) {
    write({{"begins", check_or_case}, {"alone", alone}});
}

void Journal::stops(const std::string& name) {
    write({{"stops", name}});
}

void Journal::ends(const std::string& check, const Result& result) {
    const Json line = line_of(check, result);
    write(line);
    take(line);
}

void Journal::add_ceilings(const Json& ceilings) {
    const Json line = {{"ceilings", ceilings}};
    write(line);
    take(line);
}

void Journal::add_bench(const Json& result) {
    const Json line = {{"bench", result}};
    write(line);
    take(line);
}

void Journal::remove() {
    file_.close();
    std::filesystem::remove(path_of(path_));
}

}  // namespace vkattn::tools::report
