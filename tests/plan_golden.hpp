// Lists of lines that are kept in tests/golden, and compared with what the planner does now.
#pragma once

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace vkattn::test {

inline std::string diff(const std::vector<std::string>& golden, const std::vector<std::string>& now) {
    std::string out;
    const auto add_lines = [&](const char* sign, const auto& of, const auto& others) {
        const std::set<std::string> known(others.begin(), others.end());
        for (const std::string& line : of)
            if (!known.contains(line)) out += sign + line + "\n";
    };
    add_lines("- ", golden, now);
    add_lines("+ ", now, golden);
    return out;
}

// Rewrites the file first if VKATTN_UPDATE_GOLDEN is 1.
inline void check_golden(const std::string& name, const std::vector<std::string>& now) {
    const std::string path = VKATTN_TESTS_DIR "/golden/" + name;
    const char* const update = std::getenv("VKATTN_UPDATE_GOLDEN");
    if (update != nullptr && std::string(update) == "1") {
        std::ofstream file(path, std::ios::binary);
        for (const std::string& line : now) file << line << "\n";
        file.close();
        REQUIRE_MESSAGE(file.good(), path << " could not be written");
        MESSAGE("rewrote " << path);
    }
    std::ifstream file(path);
    std::vector<std::string> golden;
    for (std::string line; std::getline(file, line);) golden.push_back(line);
    CHECK_MESSAGE(golden == now,
                  path << " differs:\n"
                       << diff(golden, now)
                       << "If this is meant: VKATTN_UPDATE_GOLDEN=1 vkattn_plan_tests, and review the file.");
}

}  // namespace vkattn::test
