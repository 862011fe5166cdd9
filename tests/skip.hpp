// Skips are said and counted: a test that cannot run here must not look like one that passed. Nor must a run that
// tested nothing.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace vkattn::test {

inline int skip_count = 0;

// Call from the main thread, then return from the test case (or from the part that cannot run).
inline void skip(const std::string& reason) {
    skip_count++;
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
}

// Called by main after the last test: each returns why the run as a whole has failed, or "".
using RunCheck = std::string (*)();
inline std::vector<RunCheck>& run_checks() {
    static std::vector<RunCheck> all;
    return all;
}
inline bool at_end_of_run(RunCheck check) {
    run_checks().push_back(check);
    return true;
}

}  // namespace vkattn::test
