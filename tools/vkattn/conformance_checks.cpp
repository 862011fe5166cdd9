// Which checks there are, and which of them are asked for.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "common.hpp"
#include "conformance.hpp"

namespace vkattn::tools::conformance {
namespace {

constexpr const char* forward_text =
#include "forward_cases.inc"
    ;
constexpr const char* backward_text =
#include "backward_cases.inc"
    ;

// Head dims that every device builds pipelines for in a second or two.
constexpr uint32_t most_smoke_head_dim = 96;

const char* pass_of(bool backward) {
    return backward ? "backward" : "forward";
}

std::string dashed(std::string text) {
    std::ranges::replace(text, ' ', '-');
    return text;
}

// The words of a line, one space between them.
std::string words_of(const std::string& text) {
    std::string words;
    for (const char c : text) {
        const bool blank = c == ' ' || c == '\t' || c == '\r';
        if (!blank)
            words += c;
        else if (!words.empty() && words.back() != ' ')
            words += ' ';
    }
    while (!words.empty() && words.back() == ' ') words.pop_back();
    return words;
}

struct Maker {
    Level level;
    std::vector<Check> checks;
    std::map<std::string, int> names;

    void add(const test::Section& section, const test::Case& c, bool backward, const char* kernel) {
        Check check;
        check.backward = backward;
        check.c = c;
        check.c.text = words_of(c.text);
        check.feature = fmt::format("{}/{}", pass_of(backward), dashed(section.name));
        std::string words = check.c.text;
        std::ranges::replace(words, ' ', ',');
        check.name = fmt::format("{}/{}", check.feature, words);
        if (kernel != nullptr) {
            check.forced = true;
            check.c.kernel = kernel;
            check.c.text += fmt::format(" kernel={}", kernel);
            check.name += fmt::format("/{}", kernel);
        }
        // A section may have a line twice, for what its neighbours have left in the caches of pipelines.
        if (const int before = names[check.name]++; before != 0) check.name += fmt::format("#{}", before + 1);
        checks.push_back(std::move(check));
    }

    void add_all(const std::vector<test::Section>& sections, bool backward) {
        for (const test::Section& section : sections) {
            bool has_smoke = false;
            for (const test::Case& c : section.cases) {
                const bool small =
                    std::max(c.problem.head_dim_qk, c.problem.head_dim_v) <= most_smoke_head_dim;
                if (level == Level::smoke && (has_smoke || !small)) continue;
                has_smoke = true;
                add(section, c, backward, nullptr);
                if (c.kernel != "auto" || !c.tuning.empty()) continue;
                if (level == Level::full) {
                    for (const char* kernel : {"rows", "tiles", "matrix", "matrix_khr", "materialized"})
                        if (!backward || std::string_view(kernel) != "rows")
                            add(section, c, backward, kernel);
                } else if (c.problem.dtype == VKATTN_DTYPE_FLOAT16) {
                    add(section, c, backward, "matrix");
                }
            }
        }
    }
};

}  // namespace

Level parse_level(const std::string& text) {
    if (text == "smoke") return Level::smoke;
    if (text == "standard") return Level::standard;
    if (text == "full") return Level::full;
    throw UsageError("--level", fmt::format("'{}' is not smoke, standard or full", text));
}

std::string Check::line() const {
    return fmt::format("{} {}", pass_of(backward), c.text);
}

std::vector<Check> checks_of(Level level) {
    Maker maker{level, {}, {}};
    maker.add_all(test::parse_cases(forward_text, "forward.txt"), false);
    maker.add_all(test::parse_cases(backward_text, "backward.txt"), true);
    return std::move(maker.checks);
}

Check check_of(const std::string& given) {
    const std::string line = words_of(given);
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string pass = line.substr(0, blank);
    if (pass != "forward" && pass != "backward")
        throw UsageError("--case", fmt::format("'{}' is neither forward nor backward", pass));
    Check check;
    check.backward = pass == "backward";
    check.feature = pass + "/case";
    check.name = check.feature;
    try {
        check.c = test::parse_case(line.substr(std::min(blank + 1, line.size())), "--case");
    } catch (const test::CaseError& error) {
        const std::string what = error.what(), prefix = "--case: ";
        throw UsageError("--case", what.starts_with(prefix) ? what.substr(prefix.size()) : what);
    }
    return check;
}

bool matches(std::string_view pattern, std::string_view name) {
    size_t p = 0, n = 0, star = pattern.npos, from = 0;
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            from = n;
        } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
            p++;
            n++;
        } else if (star != pattern.npos) {
            p = star + 1;
            n = ++from;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') p++;
    return p == pattern.size();
}

std::vector<Check> chosen(std::vector<Check> checks, const std::string& pattern, uint32_t index,
                          uint32_t count) {
    std::erase_if(checks, [&](const Check& check) { return !matches(pattern, check.name); });
    std::vector<Check> own;
    for (size_t i = 0; i < checks.size(); i++)
        if (i % count == index - 1) own.push_back(std::move(checks[i]));
    return own;
}

}  // namespace vkattn::tools::conformance
