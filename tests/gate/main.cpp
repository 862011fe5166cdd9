// vkattn_gate: builds every pipeline that the planner chooses for the problems of problems.txt on the current device, and
// compares what its compiler says of them with the kept table. Nothing is executed. Run by tools/gate.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "gate/compiler.hpp"
#include "gate/table.hpp"
#include "gpu/case_plan.hpp"

namespace vkattn::test {
namespace {

std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + " cannot be read");
    return {std::istreambuf_iterator<char>(file), {}};
}

// A line without a type stands for all three.
std::vector<Case> in_all_types(const Case& c) {
    if (c.text.find("dtype=") != std::string::npos) return {c};
    std::vector<Case> all;
    for (const char* type : {"f32", "f16", "bf16"})
        all.push_back(parse_case(c.text + " dtype=" + type, c.where));
    return all;
}

// By what a reader knows it. Constants that no word stands for follow from the row.
std::string name_of(const core::Dispatch& d, const core::Plan& plan) {
    const auto& s = d.specialization;
    std::string name = fmt::format("{} {} {}x{}", core::name_of(d.variant), plan.tuning_row,
                                   s[SPEC_HEAD_DIM_QK], s[SPEC_HEAD_DIM_V]);
    const bool matrix = (needs_of(d.variant) & core::NEED_MATRIX) != 0;
    const std::pair<const char*, bool> words[] = {{"elements", s[SPEC_WIDE_LOADS] == 0},
                                                  {"wide-rows", s[SPEC_WIDE_ROWS] != 0},
                                                  {"pack", s[SPEC_PACK] != 0},
                                                  {"softcap", s[SPEC_SOFTCAP] != 0},
                                                  {"bool", s[SPEC_MASK] == MASK_BOOL},
                                                  {"float", s[SPEC_MASK] == MASK_FLOAT},
                                                  {"split", s[SPEC_SPLIT] != 0},
                                                  {"saved", !matrix && s[SPEC_SAVED] != 0},
                                                  {"dlse", !matrix && s[SPEC_DLSE] != 0},
                                                  {"running", matrix && s[SPEC_RUNNING_MAX] != 0}};
    for (const auto& [word, holds] : words)
        if (holds) name += fmt::format(" {}", word);
    return name;
}

class Gate {
  public:
    explicit Gate(const Compiler& compiler) : compiler_(compiler) { table_.driver = compiler.info().driver; }

    void add(const Case& c, bool backward) {
        const auto plan = core_plan_of(compiler_.caps(), c, backward);
        if (!plan && c.kernel == "matrix" && !has_matrices_for(c)) return;  // a line for other devices
        if (!plan) throw std::runtime_error(fmt::format("{}: {}", c.where, plan.failure().message));
        for (const core::Dispatch& d : plan->dispatches)
            if (seen_.insert({d.variant, d.specialization}).second) build(name_of(d, *plan), d);
    }
    const Table& table() const { return table_; }

  private:
    bool has_matrices_for(const Case& c) const {
        const auto& shapes = compiler_.caps().matrices;
        const VkattnDtype operands = c.precision == VKATTN_PRECISION_STORAGE   ? c.problem.dtype
                                     : c.precision == VKATTN_PRECISION_FLOAT16 ? VKATTN_DTYPE_FLOAT16
                                                                               : VKATTN_DTYPE_BFLOAT16;
        return std::any_of(shapes.begin(), shapes.end(),
                           [&](const core::MatrixShape& s) { return s.dtype == operands; });
    }
    void build(const std::string& name, const core::Dispatch& d) {
        const Built built = compiler_.build(d);
        Usage usage;
        if (built.result == VK_SUCCESS)
            usage = usage_of(built.statistics, uint64_t{d.specialization[SPEC_POOL_VEC4]} * 16);
        usage.result = built.result;
        usage.ms = static_cast<uint64_t>(built.ms);
        std::string free = name;
        for (int i = 2; table_.pipelines.contains(free); i++) free = fmt::format("{} ({})", name, i);
        table_.pipelines[free] = usage;
    }

    const Compiler& compiler_;
    std::set<std::pair<core::Variant, std::array<uint32_t, SPEC_COUNT>>> seen_;
    Table table_;
};

// "" if vkattn can use the device that a runtime would pick.
std::string refusal() {
    const std::vector<DeviceInfo> all = list_devices();
    return all.empty() ? "there is no Vulkan device" : all.front().refusal;
}

Table build_all(const std::string& problems) {
    const Compiler compiler;
    Gate gate(compiler);
    for (const Section& section : parse_cases(read(problems), problems))
        for (const Case& line : section.cases)
            for (const Case& c : in_all_types(line)) gate.add(c, section.name == "backward");
    return gate.table();
}

void print_summary(const Table& table) {
    uint64_t spilling = 0, failed = 0, worst = 0, total = 0;
    for (const auto& [name, usage] : table.pipelines) {
        failed += usage.result != 0;
        spilling += usage.spills != 0 || usage.stack_bytes != 0;
        worst = std::max(worst, usage.ms);
        total += usage.ms;
    }
    fmt::print("{} pipelines, {} failed, {} spill; {:.1f} s to build, the slowest {:.1f} s; {}\n",
               table.pipelines.size(), failed, spilling, double(total) / 1e3, double(worst) / 1e3,
               table.driver);
}

// The last line counts, as that of every suite: see tools/lib/suites.sh.
int compare(const Table& now, const std::string& kept_file) {
    const Table kept = parse_table(read(kept_file));
    const std::vector<std::string> worse = regressions(kept, now);
    for (const std::string& line : worse) fmt::print("{}\n", line);
    if (kept.driver != now.driver) {
        fmt::print("skipped: the table is of {}, this is {}: {} pipelines are worse, or not in it\n",
                   kept.driver, now.driver, worse.size());
        fmt::print("0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    fmt::print("{} passed, {} failed, 0 skipped\n",
               now.pipelines.size() - std::min(now.pipelines.size(), worse.size()), worse.size());
    return worse.empty() ? 0 : 1;
}

int run(int argc, char** argv) {
    CLI::App app(
        "Builds the pipelines of a list of problems on the current device; compares with a kept table");
    std::string problems, kept;
    bool update = false, table = false;
    app.add_option("--problems", problems, "One problem a line")->required();
    app.add_option("--kept", kept, "The table to compare with")->required();
    app.add_flag("--update", update, "Write the table instead");
    app.add_flag("--table", table, "Print the whole table");
    CLI11_PARSE(app, argc, argv);
    if (const std::string why = refusal(); !why.empty()) {
        if (std::filesystem::exists(kept))
            throw std::runtime_error("there is a table of this device, but: " + why);
        fmt::print("skipped: {}\n0 passed, 0 failed, 1 skipped\n", why);
        return 0;
    }
    const Table now = build_all(problems);
    if (table) fmt::print("{}", to_text(now));
    print_summary(now);
    if (!update) return compare(now, kept);
    std::ofstream file(kept, std::ios::binary);
    file << to_text(now);
    file.close();
    if (!file) throw std::runtime_error(kept + " cannot be written");
    fmt::print("{} passed, 0 failed, 0 skipped\n", now.pipelines.size());
    return 0;
}

}  // namespace
}  // namespace vkattn::test

int main(int argc, char** argv) {
    try {
        return vkattn::test::run(argc, argv);
    } catch (const std::exception& e) {
        fmt::print("{}\n0 passed, 1 failed, 0 skipped\n", e.what());
        return 1;
    }
}
