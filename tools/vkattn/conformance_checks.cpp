// Which checks there are, and which of them are asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

#include "common.hpp"
#include "conformance.hpp"
#include "driver_checks.hpp"
#include "gpu/backward_run.hpp"
#include "gpu/behaviour.hpp"
#include "gpu/combine_run.hpp"

namespace vkattn::tools::conformance {
namespace {

constexpr const char* forward_text =
#include "forward_cases.inc"
    ;
constexpr const char* backward_text =
#include "backward_cases.inc"
    ;
constexpr const char* combine_text =
#include "combine_cases.inc"
    ;
constexpr const char* behaviour_text =
#include "behaviour_cases.inc"
    ;

// Head dims that every device builds pipelines for in a second or two.
constexpr uint32_t most_smoke_head_dim = 96;

std::string dashed(std::string text) {
    std::ranges::replace(text, ' ', '-');
    return text;
}

// The words of a line, one space between them.
std::string readable(const std::string& text) {
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

const Pass* pass_named(const std::string& name) {
    const auto found = std::ranges::find(passes(), name, &Pass::name);
    return found != passes().end() ? &*found : nullptr;
}

// The pass of a driver check is named "driver-" and what is tried, and its feature "driver/" and that.
constexpr const char* driver_pass = "driver-";
constexpr const char* driver_feature = "driver/";

std::vector<Pass> make_passes() {
    std::vector<Pass> all = {{"forward", false, test::run_case},
                             {"backward", true, test::run_backward_case},
                             {"combine", false, test::run_combine_case}};
    for (const DriverCheck& check : driver_checks())
        all.push_back({std::string(driver_pass) + check.name, false,
                       [&check](test::Device& device, VkattnContext*, const test::Case&) {
                           return run_driver_check(device, check);
                       },
                       true});
    for (const test::Behaviour& behaviour : test::behaviours())
        for (const bool backward : {false, true})
            all.push_back(
                {dashed(fmt::format("{}{}", backward ? "backward " : "", behaviour.name)), backward,
                 [&behaviour, backward](test::Device& device, VkattnContext* context, const test::Case& c) {
                     return test::run_behaviour(device, context, behaviour, c, backward);
                 }});
    return all;
}

Check check_of_driver(const Pass& pass) {
    Check check;
    check.pass = &pass;
    check.name = check.feature = driver_feature + pass.name.substr(std::string_view(driver_pass).size());
    return check;
}

struct Maker {
    Level level;
    std::vector<Check> checks;
    std::map<std::string, int> names;

    void add(const std::string& feature, const Pass& pass, const test::Case& c, const char* kernel) {
        Check check;
        check.pass = &pass;
        check.c = c;
        check.c.text = readable(c.text);
        check.feature = feature;
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

    static bool is_of_forward(std::string_view kernel) {
        return kernel.starts_with("rows") || kernel.ends_with("rows");
    }

    // The kernels that a level forces beside the planner's own choice. The smoke level forces none: sections of their
    // own run the matrix kernels, whose backward takes lavapipe 12 s to compile.
    void add_forced(const std::string& feature, const Pass& pass, const test::Case& c) {
        if (c.kernel != "auto" || !c.tuning.empty() || level == Level::smoke) return;
        if (level == Level::standard) {
            if (c.problem.dtype == VKATTN_DTYPE_FLOAT16) add(feature, pass, c, "matrix");
            return;
        }
        for (const char* kernel : {"rows", "tiles", "matrix", "matrix_khr", "rows_dot", "matrix_rows",
                                   "tiles_dot", "materialized"})
            if (!pass.backward || !is_of_forward(kernel)) add(feature, pass, c, kernel);
    }

    void add_driver_checks() {
        for (const Pass& pass : passes())
            if (pass.is_of_driver) checks.push_back(check_of_driver(pass));
    }

    // `group`: the first part of names. Sections of behaviours name their own pass.
    void add_all(const char* group, const char* text) {
        const std::string name = group;
        const bool behaviours = name == "behaviour";
        for (const test::Section& section : test::parse_cases(text, name + ".txt")) {
            const std::string feature = fmt::format("{}/{}", name, dashed(section.name));
            const Pass& pass = *pass_named(behaviours ? dashed(section.name) : name);
            bool has_smoke = false;
            for (const test::Case& c : section.cases) {
                const bool small =
                    std::max(c.problem.head_dim_qk, c.problem.head_dim_v) <= most_smoke_head_dim;
                if (level == Level::smoke && (has_smoke || !small)) continue;
                has_smoke = true;
                add(feature, pass, c, nullptr);
                if (name == "forward" || name == "backward") add_forced(feature, pass, c);
            }
        }
    }
};

}  // namespace

const std::vector<Pass>& passes() {
    static const std::vector<Pass> all = make_passes();
    return all;
}

Level parse_level(const std::string& text) {
    if (text == "smoke") return Level::smoke;
    if (text == "standard") return Level::standard;
    if (text == "full") return Level::full;
    throw UsageError("--level", fmt::format("'{}' is not smoke, standard or full", text));
}

std::string Check::line() const {
    return c.text.empty() ? pass->name : fmt::format("{} {}", pass->name, c.text);
}

std::vector<Check> checks_of(Level level) {
    Maker maker{level, {}, {}};
    maker.add_driver_checks();
    maker.add_all("forward", forward_text);
    maker.add_all("backward", backward_text);
    maker.add_all("combine", combine_text);
    maker.add_all("behaviour", behaviour_text);
    return std::move(maker.checks);
}

UsageError case_error(const test::CaseError& error) {
    const std::string what = error.what(), prefix = "--case: ";
    return {"--case", what.starts_with(prefix) ? what.substr(prefix.size()) : what};
}

Check check_of(const std::string& given) {
    const std::string line = readable(given);
    const size_t blank = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, blank);
    Check check;
    check.pass = pass_named(name);
    if (check.pass == nullptr) {
        std::vector<std::string> names;
        for (const Pass& pass : passes()) names.push_back(pass.name);
        throw UsageError("--case", fmt::format("'{}' is none of {}", name, fmt::join(names, ", ")));
    }
    if (check.pass->is_of_driver) {
        if (blank != line.size()) throw UsageError("--case", fmt::format("{} takes no words", name));
        return check_of_driver(*check.pass);
    }
    check.feature = name + "/case";
    check.name = check.feature;
    try {
        check.c = test::parse_case(line.substr(std::min(blank + 1, line.size())), "--case");
    } catch (const test::CaseError& error) {
        throw case_error(error);
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
