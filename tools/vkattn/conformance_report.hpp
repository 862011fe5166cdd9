// These functions tell what a conformance run has found, to people and to programs.
#pragma once

#include <map>
#include <span>
#include <string>

#include "common.hpp"
#include "conformance.hpp"

namespace vkattn::tools::conformance {

struct Report {
    std::string level;  // "smoke", "standard", "full"; "case" or "fuzz" where no level was run
    uint64_t seed = 0;  // of fuzz
    std::string shard;  // as it was asked for
    std::string filter;
    std::string date;  // when the run began
    std::span<const DeviceRun> devices;
};

// The command that repeats a check.
std::string reproduction(const DeviceRun& run, const Check& check);

// By feature and kernel, then why checks were skipped, then the failures.
void print_table(const DeviceRun& run);
Json to_json(const Report& report);
std::string to_junit(const Report& report);  // one test suite for each device
std::string to_html(const Report& report);   // one file, nothing loaded from elsewhere

// These make parts of such a page: how it begins, what a device is and how many of its checks are right, and what
// there is to know of these.
std::string html_head(const std::string& title);
std::string html_overview(const DeviceRun& run);
std::string html_details(const DeviceRun& run);
// Returns what `vkattn info --profile` prints of a device, or why the device does not tell it.
std::string profile_of(const DeviceInfo& device);

// Numbers of a feature and kernel.
struct Cell {
    size_t passed = 0, failed = 0, skipped = 0;
    double worst = 0, seconds = 0;
};
struct Row {
    std::string feature, kernel;
    Cell cell;
};
std::vector<Row> rows_of(const DeviceRun& run);                    // in the order of the checks
std::map<std::string, size_t> skip_reasons(const DeviceRun& run);  // and how many checks each was given for
std::string text_of_interruption(const DeviceRun& run);            // what an interrupted run has left out
std::string text_of_rounds(const DeviceRun& run);                  // ", in 7 rounds"; "" without any
size_t not_run(const DeviceRun& run);                              // checks that an interruption left out
const char* name_of(Status status);
std::string kernel_of(const Check& check, const Result& result);  // that it ran on or was meant for
Json number_or_text(double x);                 // JSON has no infinity, which is the error of a NaN
std::string escaped(const std::string& text);  // for HTML and XML

}  // namespace vkattn::tools::conformance
