// vkattn_gate: builds every pipeline that the planner chooses for the problems of problems.txt on the current device,
// and compares what its compiler says of them with the kept table. With --changed it builds only pipelines that the
// kept table does not have, and a share of the others if asked. Nothing is executed. Run by tools/gate.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "device_tests/probe.hpp"
#include "gate/compiler.hpp"
#include "gate/layouts.hpp"
#include "gate/table.hpp"
#include "gpu/case_plan.hpp"
#include "plan/launch.hpp"
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

// Names a pipeline by what a reader knows of it. Constants that no word stands for follow from the tuning row, and from
// the problem's own tuning.
std::string name_of(const core::Pipeline& p, const core::Plan& plan, const std::string& layout,
                    const std::string& tuning) {
    const auto constant = [&](const char* name) { return core::constant_of(p, name); };
    std::string name = fmt::format("{} {} {}x{}", core::name_of(p.module), plan.tuning_row,
                                   constant("head_dim_qk"), constant("head_dim_v"));
    const bool by_elements = constant("load_bytes") <= 4 && constant("load_bytes") != 0;
    const std::pair<const char*, bool> words[] = {{"elements", by_elements},
                                                  {"far-rows", constant("far_rows") != 0},
                                                  {"packed-heads", constant("packed_heads") != 0},
                                                  {"softcap", constant("has_softcap") != 0},
                                                  {"slopes", constant("slopes") != SLOPES_NONE},
                                                  {"sinks", constant("has_sinks") != 0},
                                                  {"blocks", constant("has_block_map") != 0},
                                                  {"bool", constant("mask_kind") == MASK_BOOL},
                                                  {"float", constant("mask_kind") == MASK_FLOAT},
                                                  {"split", constant("is_split") != 0},
                                                  {"resumed", constant("is_resumed") != 0},
                                                  {"dlse", constant("has_dlse") != 0},
                                                  {layout.c_str(), constant("element_layout") != 0}};
    for (const auto& [word, holds] : words)
        if (holds) name += fmt::format(" {}", word);
    return tuning.empty() ? name : fmt::format("{} {}", name, tuning);
}

// Returns the work of a forward kernel without matrix units, and nothing for other kernels, of which it is not known.
std::optional<LoopWork> work_of(const core::Pipeline& p) {
    const std::string_view kernel = core::name_of(p.module);
    const bool of_tiles = kernel.starts_with("forward_tiles"), of_rows = kernel.starts_with("forward_rows");
    if (!of_tiles && !of_rows) return {};
    const auto constant = [&](const char* name) { return double(core::constant_of(p, name)); };
    const double rows = constant("rows"), lanes = constant("lanes"),
                 lines = p.module.has(core::macros::DOT) ? 2 : 1;
    const double out_dims = 4 * std::ceil(constant("head_dim_v") / (4 * lanes));  // of an invocation
    if (of_rows) {
        const double dims = 4 * std::ceil(constant("head_dim_qk") / (4 * lanes));
        return LoopWork{{rows * dims * lanes / lines, 1}, {rows * out_dims * lanes / lines, 1}};
    }
    const double cols = constant("cols"), chunks = std::ceil(constant("head_dim_qk") / constant("chunk"));
    return LoopWork{{rows * cols * chunks * constant("chunk") / lines, chunks},
                    {rows * out_dims * cols * lanes / lines, cols * lanes / constant("v_keys")}};
}

bool has_matrices_for(const core::DeviceCaps& caps, const Case& c) {
    const VkattnDtype operands = c.precision == VKATTN_PRECISION_STORAGE   ? c.problem.dtype
                                 : c.precision == VKATTN_PRECISION_FLOAT16 ? VKATTN_DTYPE_FLOAT16
                                                                           : VKATTN_DTYPE_BFLOAT16;
    return std::any_of(caps.matrices.begin(), caps.matrices.end(),
                       [&](const core::MatrixShape& s) { return s.dtype == operands; });
}

// The baseline's plans have pipelines for all steps, of which a problem may need only some.
std::vector<core::Pipeline> used_pipelines(const core::Plan& plan) {
    std::set<uint32_t> used;
    for (const core::Dispatch& d : plan.dispatches) used.insert(d.pipeline);
    std::vector<core::Pipeline> pipelines;
    for (const uint32_t i : used) pipelines.push_back(plan.pipelines[i]);
    return pipelines;
}

class Gate {
  public:
    Gate(const Compiler& compiler, Modules kept, Modules now)
        : compiler_(compiler), kept_(std::move(kept)), now_(std::move(now)), rows_(compiler.info().driver) {}

    TableBuilder& rows() { return rows_; }

    void add_probe() {
        for (const core::Pipeline& p : probe_plan(compiler_.caps()).pipelines)
            add(fmt::format("{} {}x{}x{}", core::name_of(p.module), core::constant_of(p, "matrix_m"),
                            core::constant_of(p, "matrix_n"), core::constant_of(p, "matrix_k")),
                p);
    }
    void add_block_map() {
        const auto problem =
            core::resolve(parse_case("s=300 d=64 mask=bool mask_shape=300,300 random_map", "here").problem);
        const auto plan = make_block_map_plan(compiler_.caps(), *problem);
        for (const core::Pipeline& p : plan->pipelines) add(core::name_of(p.module) + std::string(" any"), p);
    }
    void add(const Case& c, bool backward) {
        for (const KnownDevice& device : devices_) {
            const auto plan = core_plan_of(device.caps, c, backward);
            if (!plan && is_for_others(c, device.caps, plan.failure().message)) continue;
            if (!plan) throw std::runtime_error(fmt::format("{}: {}", c.where, plan.failure().message));
            add(*plan, device, c);
        }
    }
    // The same, but says which refusals there are, and goes on. Returns false if no layout has a plan.
    bool try_to_add(const Case& c, bool backward) {
        bool planned = false;
        for (const KnownDevice& device : devices_) {
            const auto plan = core_plan_of(device.caps, c, backward);
            if (plan)
                add(*plan, device, c);
            else
                fmt::print("{}{}{}: {}\n", c.where, device.layout.empty() ? "" : " layout-", device.layout,
                           plan.failure().message);
            planned = planned || plan;
        }
        return planned;
    }

  private:
    // True if a line of problems.txt is for other devices.
    static bool is_for_others(const Case& c, const core::DeviceCaps& caps, const std::string& refusal) {
        if (c.kernel == "matrix")
            return !has_matrices_for(caps, c) || refusal.find("have registers for") != std::string::npos;
        if (c.kernel.ends_with("_dot")) return !core::has_dot_products(caps, c.problem.dtype);
        return c.kernel == "rows" && refusal.find("too few registers") != std::string::npos;
    }
    void add(const core::Plan& plan, const KnownDevice& device, const Case& c) {
        for (const core::Pipeline& p : used_pipelines(plan))
            add(name_of(p, plan, device.layout, c.tuning), p);
    }
    void add(const std::string& name, const core::Pipeline& p) {
        const Identity identity{
            fingerprint(p, constants_), hash_of_constants(p, constants_),
            !p.module.has(core::macros::ROLLED) && now_.has_same(core::name_of(p.module), kept_)};
        rows_.add(name, identity, [&] { return usage_now(p); });
    }
    Usage usage_now(const core::Pipeline& p) {
        const Built built = compiler_.build(constants_.key_of(p));
        Usage usage;
        if (built.result == VK_SUCCESS) {
            usage = usage_of(built.statistics, uint64_t{core::constant_of(p, "pool_vec4")} * 16);
            add_loop(usage, built.code, compiler_.info().name, work_of(p));
        }
        usage.result = built.result;
        usage.ms = static_cast<uint64_t>(built.ms);
        return usage;
    }

    const Compiler& compiler_;
    const std::vector<KnownDevice> devices_ = with_known_layouts(compiler_.caps());
    core::PipelineConstants constants_;
    const Modules kept_, now_;
    TableBuilder rows_;
};

// "" if vkattn can use the device that a runtime would pick.
std::string refusal() {
    const std::vector<DeviceInfo> all = list_devices();
    return all.empty() ? "there is no Vulkan device" : all.front().refusal;
}

// Calls add(case, whether it is of the backward) for all problems of a file, in all types.
template <class Add>
void for_each_problem(const std::string& file, const Add& add) {
    for (const Section& section : parse_cases(read(file), file)) {
        if (section.name != "forward" && section.name != "backward")
            throw std::runtime_error(fmt::format(
                "{}: no section is named [{}]; there are [forward] and [backward]", file, section.name));
        for (const Case& line : section.cases)
            for (const Case& c : in_all_types(line)) add(c, section.name == "backward");
    }
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
    fmt::print("{} rows, {} failed; {} spill; {} built, {} kept\n", table.pipelines.size(), failed, spilling,
               table.pipelines.size() - rows.rows_kept(), rows.rows_kept());
    fmt::print("{} pipelines built in {:.1f} s, the slowest in {:.1f} s; {}\n", rows.built().size(),
               double(total) / 1e3, double(worst) / 1e3, table.driver);
}

// The last line counts, as that of every suite: see tools/lib/suites.sh.
int skip(const std::string& reason) {
    fmt::print("skipped: {}\n0 passed, 0 failed, 1 skipped\n", reason);
    return 0;
}

int compare(const Table& kept, const TableBuilder& rows) {
    const Table& now = rows.table();
    const std::vector<std::string> worse = regressions(kept, now);
    for (const std::string& line : worse) fmt::print("{}\n", line);
    if (kept.driver != now.driver)
        return skip(fmt::format("the table is of {}, this is {}: {} rows are worse, or not in it",
                                kept.driver, now.driver, worse.size()));
    if (rows.rows_changed() != 0)
        fmt::print("rows that have changed: {} (--update keeps them)\n", rows.rows_changed());
    fmt::print("{} passed, {} failed, 0 skipped\n",
               now.pipelines.size() - std::min(now.pipelines.size(), worse.size()), worse.size());
    return worse.empty() ? 0 : 1;
}

struct Arguments {
    std::string problems, kept, modules, modules_now, write_modules, tables, shader_compiler, again;
    bool update = false, table = false, changed = false, loops = false;
};

void write(const std::string& text, const std::string& path) {
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (!file) throw std::runtime_error(path + " cannot be written");
}

// Writes what this build and the tables have of each module. The forms for CPUs are of no device here.
int write_modules(const Arguments& a) {
    Modules modules{a.shader_compiler, {}};
    for (const core::Module& module : core::built_modules())
        if (!module.has(core::macros::ROLLED))
            modules.hashes.emplace(core::name_of(module), hash_of_words(module));
    std::set<std::filesystem::path> files;  // in the same order everywhere
    for (const auto& entry : std::filesystem::directory_iterator(a.tables)) files.insert(entry.path());
    for (const std::filesystem::path& file : files) modules.add_rows(parse_table(read(file)));
    write(to_text(modules), a.write_modules);
    return 0;
}

// From "I/N"; no share from "".
Share parse_share(const std::string& text) {
    if (text.empty()) return {};
    unsigned index = 0, count = 0;
    int end = 0;
    const bool is_read = std::sscanf(text.c_str(), "%u/%u%n", &index, &count, &end) == 2;
    if (!is_read || size_t(end) != text.size() || index < 1 || index > count)
        throw std::runtime_error(fmt::format("--again takes I/N with 1 <= I <= N, not '{}'", text));
    return {index - 1, count};
}

// Prints the table of any problems. Those that cannot be planned, and pipelines that cannot be built, have failed.
int show(const Arguments& a) {
    if (const std::string why = refusal(); !why.empty()) return skip(why);
    const Compiler compiler;
    Gate gate(compiler, {}, {});
    size_t failed = 0;
    for_each_problem(a.problems,
                     [&](const Case& c, bool backward) { failed += !gate.try_to_add(c, backward); });
    const Table& table = gate.rows().table();
    const auto fails = [](const auto& row) { return row.second.usage.result != 0; };
    const auto unbuilt = std::ranges::count_if(table.pipelines, fails);
    fmt::print("{}", whole_text(table, a.loops));
    print_summary(gate.rows());
    failed += static_cast<size_t>(unbuilt);
    fmt::print("{} passed, {} failed, 0 skipped\n", table.pipelines.size() - static_cast<size_t>(unbuilt),
               failed);
    return failed == 0 ? 0 : 1;
}

int run(const Arguments& a) {
    if (const std::string why = refusal(); !why.empty()) {
        if (std::filesystem::exists(a.kept))
            throw std::runtime_error("there is a table of this device, but: " + why);
        return skip(why);
    }
    const Compiler compiler;
    const bool is_new = a.update && !std::filesystem::exists(a.kept);
    const Table kept = is_new ? Table{compiler.info().driver, {}} : parse_table(read(a.kept));
    const Modules modules = parse_modules(read(a.modules));
    Gate gate(compiler, modules, parse_modules(read(a.modules_now)));
    Share again{0, 1};
    if (a.changed) {
        const std::string why = other_tools(kept.driver + ", " + modules.shader_compiler,
                                            compiler.info().driver + ", " + a.shader_compiler);
        if (!why.empty() && a.update) throw std::runtime_error(why + ": --update needs to build everything");
        if (!why.empty() && a.again.empty())
            return skip(why + ": nothing was built, run tools/gate without --changed");
        const Share share = parse_share(a.again);
        if (why.empty()) again = share;
    }
    gate.rows().keep(kept, again);
    gate.add_probe();
    gate.add_block_map();
    for_each_problem(a.problems, [&](const Case& c, bool backward) { gate.add(c, backward); });
    const Table& now = gate.rows().table();
    if (a.table) fmt::print("{}", whole_text(now, a.loops));
    print_summary(gate.rows());
    if (!a.update) return compare(kept, gate.rows());
    write(to_text(bounds_of(kept, now)), a.kept);
    fmt::print("{} passed, 0 failed, 0 skipped\n", now.pipelines.size());
    return 0;
}

int parse_and_run(int argc, char** argv) {
    CLI::App app(
        "Builds the pipelines of a list of problems on the current device; compares with a kept table");
    Arguments a;
    app.add_option("--problems", a.problems, "One problem a line");
    auto* const kept =
        app.add_option("--kept", a.kept, "The table to compare with; without one, prints what there is");
    app.add_option("--modules", a.modules, "The hashes of modules that the tables were built with");
    app.add_option("--modules-now", a.modules_now, "Those of this build and these tables");
    app.add_option("--write-modules", a.write_modules, "Writes these, and does nothing else");
    app.add_option("--tables", a.tables, "With --write-modules: the folder of all tables");
    app.add_option("--shader-compiler", a.shader_compiler, "Name and version of what compiled the shaders")
        ->required();
    app.add_flag("--changed", a.changed, "Build only pipelines that the table does not have")->needs(kept);
    app.add_option("--again", a.again, "I/N: with --changed, builds this share of what the table has, too");
    app.add_flag("--update", a.update, "Write the table instead")->needs(kept);
    app.add_flag("--loops", a.loops, "With --table, or without a kept one: print the steady loops");
    app.add_flag("--table", a.table, "Print all numbers of the pipelines");
    CLI11_PARSE(app, argc, argv);
    // Honeykrisp reads this when it starts, and then prints its code, which other drivers return (see compiler.cpp).
    ::setenv("AGX_MESA_DEBUG", "shaders", 1);
    if (!a.write_modules.empty()) return write_modules(a);
    return a.kept.empty() ? show(a) : run(a);
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
