// What bench has measured of a case: as JSON, as a line of CSV, and beside the result of an earlier bench.
#pragma once

#include <map>
#include <string>

#include "common.hpp"
#include "workload.hpp"

namespace vkattn::tools {

// The times of the blocks of runs: their median, least and most, and the quartiles.
Json time_json(const Timing& time);

// Where results go, and what they are compared with.
class Results {
  public:
    // `compared`: a file of `bench --json`, or "". Throws UsageError for one that is none.
    Results(bool json, bool csv, const std::string& compared);

    bool is_json() const { return json_; }
    bool is_csv() const { return csv_; }
    bool compares() const { return !path_.empty(); }

    // Throws UsageError if the earlier results are of another device, suite, pass, type or problem than these, of
    // which `call` is the JSON without results. `problem`: null for a suite.
    void require_alike(const Json& call, const Json& problem) const;

    // Adds to a result with time_ms how it differs from the earlier one of its name, as `compared`. True if that is
    // more than noise: such a case is to be measured again.
    bool compare(Json& result) const;

    // Of two results of a case the one that differs less, because a disturbance seldom comes twice.
    static Json nearer(const Json& first, const Json& second);

    // Prints a result as a line of CSV, the first one behind a line of names.
    void print_csv(const Json& result);

    // Prints what has come of the comparison, and ends the program with exit_slower if a case is slower. `rows`: prints
    // a line for each case, too.
    void finish(const Json& results, bool rows) const;
    // The same for the JSON of all: {faster, slower, equal, missing, median_ratio}.
    Json summary(const Json& results) const;

  private:
    bool json_, csv_, has_head_ = false;
    std::string path_;
    Json earlier_;                         // the whole file, or null
    std::map<std::string, Json> by_name_;  // its cases; one problem alone has the name ""
};

}  // namespace vkattn::tools
