#include "gate/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <sstream>
#include <stdexcept>

namespace vkattn::test {
namespace {

// A driver's words. Mesa 26.1: RADV, Turnip, NVK, Honeykrisp.
struct Words {
    const char* registers;
    std::vector<const char*> spills;
    const char* stack;
    const char* shared;
    const char* occupancy;
};

const Words all_words[] = {
    {"VGPRs", {"Spilled SGPRs", "Spilled VGPRs"}, "Scratch size", "LDS size", "Subgroups per SIMD"},
    {"Registers used", {"STP Count"}, nullptr, nullptr, "Max Waves Per Core"},
    {"Number of GPRs", {"Spills to memory"}, "SLM size", nullptr, "Max warps/SM"},
    {"GPRs", {"Spills"}, "Scratch", nullptr, "Threads"},
};

// Returns LDS accesses as "16:256,64:76": before each colon are the bits of an invocation, behind it is how many there
// are. "-" stands for none.
std::string text_of(const std::map<uint32_t, uint64_t>& accesses) {
    std::string text;
    for (const auto& [bits, times] : accesses)
        text += fmt::format("{}{}:{}", text.empty() ? "" : ",", bits, times);
    return text.empty() ? "-" : text;
}

struct Column {
    const char* name;
    std::string (*text)(const Usage&);
    int width = 10;
};

template <auto member>
std::string cell(const Usage& usage) {
    return std::to_string(usage.*member);
}
template <auto member>
std::string loop_cell(const Usage& usage) {
    return std::to_string(usage.loop.*member);
}

constexpr Column columns[] = {{"registers", cell<&Usage::registers>}, {"spills", cell<&Usage::spills>},
                              {"stack", cell<&Usage::stack_bytes>},   {"shared", cell<&Usage::shared_bytes>},
                              {"occupancy", cell<&Usage::occupancy>}, {"ms", cell<&Usage::ms>}};

constexpr Column loop_columns[] = {
    {"matrix", loop_cell<&LoopCounts::matrix>},
    {"fma", loop_cell<&LoopCounts::fma>},
    {"dot", loop_cell<&LoopCounts::dot>},
    {"transc", loop_cell<&LoopCounts::transcendental>},
    {"vector", loop_cell<&LoopCounts::vector>},
    {"paired", loop_cell<&LoopCounts::paired>},
    {"scalar", loop_cell<&LoopCounts::scalar>},
    {"global", loop_cell<&LoopCounts::global_loads>},
    {"waits", loop_cell<&LoopCounts::waits>},
    {"barriers", loop_cell<&LoopCounts::barriers>},
    {"lds-loads", [](const Usage& usage) { return text_of(usage.loop.lds_loads); }, 26},
    {"lds-stores", [](const Usage& usage) { return text_of(usage.loop.lds_stores); }, 20},
    {"clocks", cell<&Usage::clocks>},
    {"unit", [](const Usage& usage) { return usage.unit; }, 16}};
constexpr double most_growth = 1.03, least_gain = 0.981;  // of clocks; see bounds_of()
// Separates a pipeline's name, which has single blanks only, from its numbers; and stands before it.
constexpr std::string_view gap = "  ";
constexpr const char* columns_kept =
    "modules, and their pipelines: hash of constants, occupancy, clocks of a pass of the steady loop";

std::string slower(const Usage& kept, const Usage& now) {
    if (kept.has_loop && !now.has_loop) return "its loop is not found any more";
    if (kept.has_exponents && !now.has_exponents) return "the loop that is found has no exponents any more";
    if (static_cast<double>(now.clocks) <= most_growth * static_cast<double>(kept.clocks)) return "";
    return fmt::format("a pass of its loop takes {} clocks ({}), kept {}", now.clocks, now.unit, kept.clocks);
}

std::string worse(const Usage& kept, const Usage& now) {
    if (now.result != 0) return kept.result == 0 ? fmt::format("fails with VkResult {}", now.result) : "";
    if (kept.result != 0) return "";
    if (now.spills > kept.spills) return fmt::format("spills {}, kept {}", now.spills, kept.spills);
    if (now.stack_bytes != 0 && kept.stack_bytes == 0)
        return fmt::format("keeps {} bytes on a stack, kept none", now.stack_bytes);
    if (now.occupancy < kept.occupancy)
        return fmt::format("occupancy {}, kept {}", now.occupancy, kept.occupancy);
    return slower(kept, now);
}

template <class Number>
Number parse_number(std::string_view text, int base = 10) {
    Number number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    if (error != std::errc() || stop != text.data() + text.size())
        throw std::runtime_error(fmt::format("'{}' is no number", text));
    return number;
}

// What few pipelines have stands behind the numbers, in words.
std::string kept_text(const Row& row) {
    const Usage& u = row.usage;
    const std::string hash = fmt::format("{:08x}", row.constants);
    if (u.result != 0) return fmt::format("{} failed={}", hash, u.result);
    std::string text =
        fmt::format("{} {} {}", hash, u.occupancy, u.has_loop ? std::to_string(u.clocks) : "-");
    if (u.has_loop && !u.has_exponents) text += " no-exponents";
    if (u.spills != 0) text += fmt::format(" spills={}", u.spills);
    if (u.stack_bytes != 0) text += " stack";
    return text;
}

Row parse_kept(const std::string& text) {
    std::istringstream fields(text);
    std::string hash, occupancy, clocks;
    if (!(fields >> hash >> occupancy) || hash.size() != 8) throw std::runtime_error("no hash and numbers");
    Row row;
    row.constants = parse_number<uint32_t>(hash, 16);
    Usage& u = row.usage;
    if (occupancy.starts_with("failed=")) {
        u.result = parse_number<int64_t>(occupancy.substr(7));
        return row;
    }
    u.occupancy = parse_number<uint64_t>(occupancy);
    if (!(fields >> clocks)) throw std::runtime_error("no clocks");
    u.has_loop = u.has_exponents = clocks != "-";
    if (u.has_loop) u.clocks = parse_number<uint64_t>(clocks);
    for (std::string word; fields >> word;) {
        if (word == "no-exponents")
            u.has_exponents = false;
        else if (word == "stack")
            u.stack_bytes = 1;
        else if (word.starts_with("spills="))
            u.spills = parse_number<uint64_t>(word.substr(7));
        else
            throw std::runtime_error(fmt::format("'{}' is no word of a kept table", word));
    }
    return row;
}

// The next line of a table's head, without its sign.
std::string head_line(std::istringstream& lines, const char* what) {
    std::string line;
    if (!std::getline(lines, line) || !line.starts_with("# "))
        throw std::runtime_error(fmt::format("the head of the table names no {}", what));
    return line.substr(2);
}

std::string unknown(const std::map<std::string, uint64_t>& statistics) {
    std::string text = "the driver's statistics are not known to tests/gate:";
    for (const auto& [name, number] : statistics) text += fmt::format(" {} {};", name, number);
    return text;
}

}  // namespace

Usage usage_of(const std::map<std::string, uint64_t>& statistics, uint64_t declared_shared_bytes) {
    const auto number = [&](const char* name) {
        const auto found = statistics.find(name);
        if (found == statistics.end())
            throw std::runtime_error(fmt::format("the driver does not report '{}'", name));
        return found->second;
    };
    const auto words = std::find_if(std::begin(all_words), std::end(all_words),
                                    [&](const Words& w) { return statistics.contains(w.occupancy); });
    if (words == std::end(all_words)) throw std::runtime_error(unknown(statistics));
    Usage usage;
    usage.registers = number(words->registers);
    for (const char* name : words->spills) usage.spills += number(name);
    usage.stack_bytes = words->stack != nullptr ? number(words->stack) : 0;
    usage.shared_bytes = words->shared != nullptr ? number(words->shared) : declared_shared_bytes;
    usage.occupancy = number(words->occupancy);
    return usage;
}

void add_loop(Usage& usage, const std::map<std::string, std::string>& code, std::string_view device_name,
              const std::optional<LoopWork>& work) {
    constexpr std::pair<const char*, Assembly> languages[] = {{"Assembly", Assembly::aco},
                                                              {"IR3 Assembly", Assembly::ir3},
                                                              {"NAK assembly", Assembly::nak},
                                                              {honeykrisp_code, Assembly::agx}};
    for (const auto& [name, language] : languages) {
        const auto text = code.find(name);
        if (text == code.end()) continue;
        if (parse_assembly(language, text->second).empty()) break;
        usage.loop = steady_loop(language, text->second, work);
        usage.has_loop = usage.loop.multiplications() != 0;
        usage.has_exponents = usage.loop.transcendental != 0;
        if (!usage.has_loop) return;
        const UnitRates* const rates = rates_of(device_name);
        const LoopBound bound = rates != nullptr ? bound_of(usage.loop, *rates) : LoopBound{};
        usage.clocks = rates != nullptr ? static_cast<uint64_t>(bound.most()) : usage.loop.instructions();
        usage.unit = rates != nullptr ? bound.unit() : "instructions";
        return;
    }
    throw std::runtime_error("the driver gives no assembly that tests/gate knows");
}

std::string to_text(const Table& table) {
    std::string text = fmt::format("# {}\n# {}\n", table.driver, columns_kept), module;
    for (const auto& [name, row] : table.pipelines) {
        const size_t blank = name.find(' ');
        if (name.substr(0, blank) != module) text += (module = name.substr(0, blank)) + "\n";
        text += fmt::format("{}{}{}{}\n", gap, name.substr(blank + 1), gap, kept_text(row));
    }
    return text;
}

Table parse_table(std::string_view text) {
    std::istringstream lines{std::string(text)};
    Table table;
    table.driver = head_line(lines, "driver");
    if (head_line(lines, "columns") != columns_kept) throw std::runtime_error("the table has other columns");
    std::string module;
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(gap)) {
            module = line;
            continue;
        }
        const size_t end = line.find(gap, gap.size());
        if (end == line.npos || module.empty())
            throw std::runtime_error("no pipeline and its numbers: " + line);
        const std::string name = module + " " + line.substr(gap.size(), end - gap.size());
        if (!table.pipelines.emplace(name, parse_kept(line.substr(end))).second)
            throw std::runtime_error("twice: " + name);
    }
    return table;
}

void Modules::add_rows(const Table& table) {
    for (const auto& [name, row] : table.pipelines) {
        const auto found = hashes.find(std::string_view(name).substr(0, name.find(' ')));
        if (found == hashes.end()) throw std::runtime_error("no module of this build: " + name);
        for (const char c : fmt::format("{} {:08x}", name, row.constants))
            found->second = (found->second ^ static_cast<uint8_t>(c)) * 0x100000001b3;  // FNV-1a
    }
}

bool Modules::has_same(std::string_view name, const Modules& other) const {
    const auto mine = hashes.find(name), others = other.hashes.find(name);
    return mine != hashes.end() && others != other.hashes.end() && mine->second == others->second;
}

std::string to_text(const Modules& modules) {
    std::string text = fmt::format("# {}\n", modules.shader_compiler);
    for (const auto& [name, words] : modules.hashes) text += fmt::format("{} {:016x}\n", name, words);
    return text;
}

Modules parse_modules(std::string_view text) {
    std::istringstream lines{std::string(text)};
    Modules modules{head_line(lines, "shader compiler"), {}};
    for (std::string name, hash; lines >> name;)
        if (!(lines >> hash) || hash.size() != 16 ||
            !modules.hashes.emplace(name, parse_number<uint64_t>(hash, 16)).second)
            throw std::runtime_error("no hash of a module, or a second one: " + name);
    return modules;
}

std::string whole_text(const Table& table, bool loops) {
    size_t width = 8;
    for (const auto& [name, row] : table.pipelines) width = std::max(width, name.size());
    const std::span<const Column> shown = loops ? std::span<const Column>(loop_columns) : columns;
    std::string text = fmt::format("# {}\n{:{}}", table.driver, "# pipeline", width);
    for (const Column& column : shown) text += fmt::format("{:>{}}", column.name, column.width);
    for (const auto& [name, row] : table.pipelines) {
        text += fmt::format("\n{:{}}", name, width);
        if (row.usage.result != 0)
            text += fmt::format("{}failed {}", gap, row.usage.result);
        else
            for (const Column& column : shown)
                text += fmt::format("{:>{}}", column.text(row.usage), column.width);
    }
    return text + "\n";
}

TableBuilder::TableBuilder(std::string driver) : table_{std::move(driver), {}} {}

void TableBuilder::keep(const Table& kept, Share again) {
    kept_ = kept;
    again_ = again;
}

void TableBuilder::add(const std::string& name, const Identity& identity,
                       const std::function<Usage()>& build) {
    std::string free = name;
    for (int i = 2; table_.pipelines.contains(free); i++) {
        if (table_.pipelines.at(free).key == identity.key) return;
        free = fmt::format("{} ({})", name, i);
    }
    const auto kept = kept_.pipelines.find(free);
    const bool same = identity.has_kept_module && kept != kept_.pipelines.end() &&
                      kept->second.constants == identity.constants;
    const bool reused = same && !again_.has(identity.key);
    rows_changed_ += same ? 0 : 1;
    rows_kept_ += reused ? 1 : 0;
    if (!reused && !built_.contains(identity.key)) built_.emplace(identity.key, build());
    table_.pipelines[free] = {identity.constants, reused ? kept->second.usage : built_.at(identity.key),
                              identity.key};
}

std::string other_tools(const std::string& kept, const std::string& now) {
    return kept == now ? "" : fmt::format("what is kept is of {}, this is {}", kept, now);
}

std::vector<std::string> regressions(const Table& kept, const Table& now) {
    std::vector<std::string> all;
    for (const auto& [name, row] : now.pipelines) {
        const auto before = kept.pipelines.find(name);
        if (before == kept.pipelines.end())
            all.push_back(name + ": is not in the kept table");
        else if (const std::string why = worse(before->second.usage, row.usage); !why.empty())
            all.push_back(name + ": " + why);
    }
    for (const auto& [name, row] : kept.pipelines)
        if (!now.pipelines.contains(name)) all.push_back(name + ": is in the kept table only");
    return all;
}

Table bounds_of(const Table& kept, const Table& now) {
    Table bounds = now;
    for (auto& [name, row] : bounds.pipelines) {
        const auto before = kept.pipelines.find(name);
        if (before == kept.pipelines.end() || before->second.usage.result != 0) continue;
        const auto clocks = static_cast<double>(row.usage.clocks);
        const auto bound = static_cast<double>(before->second.usage.clocks);
        if (clocks >= least_gain * bound && clocks <= most_growth * bound)
            row.usage.clocks = before->second.usage.clocks;
    }
    return bounds;
}

}  // namespace vkattn::test
