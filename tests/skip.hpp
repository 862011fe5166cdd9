// Skips are said and counted: a test that cannot run here must not look like one that passed.
#pragma once

#include <cstdio>
#include <string>

namespace vkattn::test {

inline int& skips() {
    static int count = 0;
    return count;
}

inline int skip_count() {
    return skips();
}

// Call from the main thread, then return from the test case (or from the part that cannot run).
inline void skip(const std::string& reason) {
    skips()++;
    std::printf("skipped: %s\n", reason.c_str());
    std::fflush(stdout);
}

}  // namespace vkattn::test
