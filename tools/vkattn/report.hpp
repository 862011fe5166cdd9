// vkattn report: what one device computes right, how reliably, and how fast, as one page to send in.
#pragma once

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common.hpp"
#include "conformance.hpp"

namespace vkattn::tools::report {

// Tried has what the runs of a check have found: the first result, or the first that was wrong, with the worst of all
// errors.
struct Tried {
    conformance::Result result;
    uint32_t runs = 0, wrong = 0;

    void add(const conformance::Result& result);
};

// Found is what a report tells of a device. Nothing in it names the machine, its user, or this one copy of the device.
struct Found {
    Json device;                         // its name, driver, type, Vulkan version, and the version of vkattn
    std::map<std::string, Tried> tried;  // by the name of the check
    std::vector<std::string> ended;      // checks and cases in which the program ended, when nothing else ran
    Json ceilings;                       // as to_json() of them has it; null: not measured
    std::map<std::string, Json> benched;  // by the name of the case
};

// Journal keeps what is found in a file beside the report, a line each as it comes, so that whatever ends the program
// loses nothing. A journal that is there already is read first.
class Journal {
  public:
    // Throws UsageError if the file cannot be written, or is of another device, driver or version of vkattn. The UUID
    // tells this copy of the device from others; it stands in the journal alone.
    Journal(std::string path, const Json& device, const std::string& uuid);

    const Found& found() const { return found_; }
    // Checks and cases that had begun when an earlier program ended, checks several at a time: one of them may have
    // ended it.
    std::set<std::string> suspects() const;

    void begins(const std::string& check_or_case, bool alone);
    void stops(const std::string& name);  // it was interrupted, and is no suspect
    void ends(const std::string& check, const conformance::Result& result);
    void add_ceilings(const Json& ceilings);
    void add_bench(const Json& result);
    // The report is written, and nothing is left to go on with.
    void remove();

  private:
    void read(const std::string& text, const Json& head);
    void take(const Json& line);
    void write(const Json& line);

    std::string path_;
    std::ofstream file_;
    Found found_;
    std::set<std::string> begun_, begun_alone_;
};

// These return all of it as JSON, and as a page that has this JSON inside. `checks` are those of the level, which may
// not all have run.
Json to_json(const Found& found, const std::vector<conformance::Check>& checks);
std::string to_html(const Found& found, const std::vector<conformance::Check>& checks,
                    const DeviceInfo& device);

}  // namespace vkattn::tools::report
