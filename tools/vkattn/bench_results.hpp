// This writes what bench has measured of a case as JSON and as a line of CSV, and compares it with an earlier result.
#pragma once

#include <map>
#include <string>

#include "common.hpp"
#include "workload.hpp"

namespace vkattn::tools {

// The times of the blocks of runs, of which there is one at least: their median, least and most, and the quartiles.
Json time_json(const Timing& time);

// A median of fewer blocks is not compared, because they do not tell its error.
constexpr uint32_t least_compared_blocks = 4;

// Results knows in which form results are printed, and which earlier results they are compared with.
class Results {
  public:
    // `compared`: a file of `bench --json`, or "". Throws UsageError for one that is none.
    Results(bool json, bool csv, const std::string& compared);

    bool is_json() const { return json_; }
    bool is_csv() const { return csv_; }
    bool compares() const { return !path_.empty(); }

    // Throws UsageError if the earlier results are of another device, suite, pass or type than those that will be
    // measured, of which `call` is the JSON without results; if they have none of the cases, whose problems are given
    // by name; or if they have one with another problem. One problem alone has the name "".
    void require_alike(const Json& call, const Json& problems) const;

    // Adds to a result with time_ms how it differs from the earlier one of its name, as `compared`. True if that is
    // more than noise.
    bool compare(Json& result) const;

    // Prints a result as a line of CSV, the first one behind a line of names.
    void print_csv(const Json& result);

    // Prints what has come of the comparison, where results are neither JSON nor CSV, and ends the program with
    // exit_slower if a case is slower, or is refused now.
    void finish(const Json& results) const;
    // Returns the same as JSON: {faster, slower, equal, refused, new, gone, median_ratio}.
    Json summary(const Json& results) const;

  private:
    bool json_, csv_, has_head_ = false;
    std::string path_;
    Json earlier_;                         // the whole file
    std::map<std::string, Json> by_name_;  // its cases that have times
};

// Tells which of two results, which were compared with the same earlier one, is nearer to it: true is the first.
bool is_nearer(const Json& a, const Json& b);

// Measures a case, and once more if it seems to differ from the earlier result: a disturbance seldom comes twice.
// `measure` returns a result, or null if it was interrupted; so does this.
template <class Measure>
Json measure_against(const Results& results, const Measure& measure) {
    Json first = measure();
    if (first.is_null() || !results.compare(first)) return first;
    Json again = measure();
    if (again.is_null()) return again;
    results.compare(again);
    return is_nearer(first, again) ? first : again;
}

}  // namespace vkattn::tools
