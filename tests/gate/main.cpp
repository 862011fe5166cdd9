// vkattn_gate: builds every pipeline that the planner chooses for the problems of problems.txt on the current device,
// and compares what its compiler says of them with the kept table. With --changed it builds only pipelines that the
// kept table does not have. Nothing is executed. Run by tools/gate.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>

#include "gate/compiler.hpp"
#include "gate/layouts.hpp"
#include "gate/table.hpp"
#include "gpu/case_plan.hpp"
#include "plan/matrix.hpp"

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

// Names a pipeline by what a reader knows of it. Constants that no word stands for follow from the tuning row.
std::string name_of(const core::Dispatch& d, const core::Plan& plan, const std::string& layout) {
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
                                                  {"running", matrix && s[SPEC_RUNNING_MAX] != 0},
                                                  {layout.c_str(), matrix && s[SPEC_LAYOUT] != 0}};
    for (const auto& [word, holds] : words)
        if (holds) name += fmt::format(" {}", word);
    return name;
}

bool has_matrices_for(const core::DeviceCaps& caps, const Case& c) {
    const VkattnDtype operands = c.precision == VKATTN_PRECISION_STORAGE   ? c.problem.dtype
                                 : c.precision == VKATTN_PRECISION_FLOAT16 ? VKATTN_DTYPE_FLOAT16
                                                                           : VKATTN_DTYPE_BFLOAT16;
    return std::any_of(caps.matrices.begin(), caps.matrices.end(),
                       [&](const core::MatrixShape& s) { return s.dtype == operands; });
}

class Gate {
  public:
    Gate(const Compiler& compiler, const std::string& shader_compiler)
        : compiler_(compiler), rows_(compiler.info().driver, shader_compiler) {}

    TableBuilder& rows() { return rows_; }

    void add_probe() {
        for (const core::Dispatch& d : probe_dispatches(compiler_.caps())) {
            const auto& s = d.specialization;
            add(fmt::format("{} {}x{}x{}", core::name_of(d.variant), s[SPEC_MATRIX_M], s[SPEC_MATRIX_N],
                            s[SPEC_MATRIX_K]),
                d);
        }
    }
    void add(const Case& c, bool backward) {
        for (const KnownDevice& device : devices_) {
            const auto plan = core_plan_of(device.caps, c, backward);
            if (!plan && c.kernel == "matrix" && !has_matrices_for(device.caps, c))
                return;  // a line for other devices
            if (!plan) throw std::runtime_error(fmt::format("{}: {}", c.where, plan.failure().message));
            for (const core::Dispatch& d : plan->dispatches) add(name_of(d, *plan, device.layout), d);
        }
    }

  private:
    void add(const std::string& name, const core::Dispatch& d) {
        const core::Specialization constants = constants_.of(d);
        rows_.add(name, key_of(d, constants), [&] { return usage_now(d.variant, constants); });
    }
    // Plans have many dispatches of few pipelines, and a fingerprint reads a whole module.
    uint64_t key_of(const core::Dispatch& d, const core::Specialization& constants) {
        const auto [key, is_new] = keys_.try_emplace({d.variant, constants}, 0);
        if (is_new) key->second = fingerprint(d, constants_);
        return key->second;
    }
    Usage usage_now(core::Variant variant, const core::Specialization& constants) const {
        const Built built = compiler_.build(variant, constants);
        Usage usage;
        if (built.result == VK_SUCCESS)
            usage = usage_of(built.statistics, uint64_t{constants[SPEC_POOL_VEC4]} * 16);
        usage.result = built.result;
        usage.ms = static_cast<uint64_t>(built.ms);
        return usage;
    }

    const Compiler& compiler_;
    const std::vector<KnownDevice> devices_ = with_known_layouts(compiler_.caps());
    core::PipelineConstants constants_;
    std::map<std::pair<core::Variant, core::Specialization>, uint64_t> keys_;
    TableBuilder rows_;
};

// "" if vkattn can use the device that a runtime would pick.
std::string refusal() {
    const std::vector<DeviceInfo> all = list_devices();
    return all.empty() ? "there is no Vulkan device" : all.front().refusal;
}

void add_all(Gate& gate, const std::string& problems) {
    gate.add_probe();
    for (const Section& section : parse_cases(read(problems), problems))
        for (const Case& line : section.cases)
            for (const Case& c : in_all_types(line)) gate.add(c, section.name == "backward");
}

void print_summary(const TableBuilder& rows) {
    const Table& table = rows.table();
    uint64_t spilling = 0, failed = 0, worst = 0, total = 0;
    for (const auto& [name, row] : table.pipelines) {
        failed += row.usage.result != 0;
        spilling += row.usage.spills != 0 || row.usage.stack_bytes != 0;
    }
    for (const auto& [key, usage] : rows.built()) {
        worst = std::max(worst, usage.ms);
        total += usage.ms;
    }
    fmt::print("{} rows, {} failed, {} spill; {} built, {} kept\n", table.pipelines.size(), failed, spilling,
               table.pipelines.size() - rows.rows_kept(), rows.rows_kept());
    fmt::print("{} pipelines built in {:.1f} s, the slowest in {:.1f} s; {}; {}\n", rows.built().size(),
               double(total) / 1e3, double(worst) / 1e3, table.driver, table.shader_compiler);
}

// The last line counts, as that of every suite: see tools/lib/suites.sh.
int skip(const std::string& reason) {
    fmt::print("skipped: {}\n0 passed, 0 failed, 1 skipped\n", reason);
    return 0;
}

int compare(const Table& kept, const Table& now) {
    const std::vector<std::string> worse = regressions(kept, now);
    for (const std::string& line : worse) fmt::print("{}\n", line);
    if (kept.driver != now.driver)
        return skip(fmt::format("the table is of {}, this is {}: {} rows are worse, or not in it",
                                kept.driver, now.driver, worse.size()));
    if (const size_t others = rows_of_other_keys(kept, now); others != 0)
        fmt::print("rows whose pipelines are not those of the table: {} (--update writes them)\n", others);
    fmt::print("{} passed, {} failed, 0 skipped\n",
               now.pipelines.size() - std::min(now.pipelines.size(), worse.size()), worse.size());
    return worse.empty() ? 0 : 1;
}

struct Arguments {
    std::string problems, kept, shader_compiler;
    bool update = false, table = false, changed = false;
};

int write(const Table& now, const std::string& kept_file) {
    std::ofstream file(kept_file, std::ios::binary);
    file << to_text(now);
    file.close();
    if (!file) throw std::runtime_error(kept_file + " cannot be written");
    fmt::print("{} passed, 0 failed, 0 skipped\n", now.pipelines.size());
    return 0;
}

int run(const Arguments& a) {
    if (const std::string why = refusal(); !why.empty()) {
        if (std::filesystem::exists(a.kept))
            throw std::runtime_error("there is a table of this device, but: " + why);
        return skip(why);
    }
    const Compiler compiler;
    Gate gate(compiler, a.shader_compiler);
    std::optional<Table> kept;
    if (a.changed || !a.update) kept = parse_table(read(a.kept));
    if (a.changed) {
        if (const std::string why = other_tools(*kept, gate.rows().table()); !why.empty())
            return skip(why + ": nothing was built, run tools/gate without --changed");
        gate.rows().keep(*kept);
    }
    add_all(gate, a.problems);
    const Table& now = gate.rows().table();
    if (a.table) fmt::print("{}", to_text(now));
    print_summary(gate.rows());
    return a.update ? write(now, a.kept) : compare(*kept, now);
}

int parse_and_run(int argc, char** argv) {
    CLI::App app(
        "Builds the pipelines of a list of problems on the current device; compares with a kept table");
    Arguments a;
    app.add_option("--problems", a.problems, "One problem a line")->required();
    app.add_option("--kept", a.kept, "The table to compare with")->required();
    app.add_option("--shader-compiler", a.shader_compiler, "Name and version of what compiled the shaders")
        ->required();
    app.add_flag("--changed", a.changed, "Build only pipelines that the table does not have");
    app.add_flag("--update", a.update, "Write the table instead");
    app.add_flag("--table", a.table, "Print the whole table");
    CLI11_PARSE(app, argc, argv);
    return run(a);
}

}  // namespace
}  // namespace vkattn::test

int main(int argc, char** argv) {
    try {
        return vkattn::test::parse_and_run(argc, argv);
    } catch (const std::exception& e) {
        fmt::print("{}\n0 passed, 1 failed, 0 skipped\n", e.what());
        return 1;
    }
}
