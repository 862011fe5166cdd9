// Lists of lines that are kept in tests/golden, and compared with what the planner does now.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace vkattn::test {

// By the text before the colon, so that one more profile or case does not make every line differ.
inline std::string diff(const std::vector<std::string>& golden, const std::vector<std::string>& now) {
    const auto key = [](const std::string& line) { return line.substr(0, line.find(": ")); };
    std::map<std::string, std::string> before, after;
    for (const std::string& line : golden) before[key(line)] = line;
    for (const std::string& line : now) after[key(line)] = line;
    std::string out;
    for (const std::string& line : golden)
        if (after.count(key(line)) == 0) out += "- " + line + "\n";
    for (const std::string& line : now) {
        const auto old = before.find(key(line));
        if (old != before.end() && old->second == line) continue;
        if (old != before.end()) out += "- " + old->second + "\n";
        out += "+ " + line + "\n";
    }
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
