#include "gate/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
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

struct Column {
    const char* name;
    uint64_t Usage::*at;
};

constexpr Column columns[] = {{"registers", &Usage::registers}, {"spills", &Usage::spills},
                              {"stack", &Usage::stack_bytes},   {"shared", &Usage::shared_bytes},
                              {"occupancy", &Usage::occupancy}, {"ms", &Usage::ms}};

struct LoopColumn {
    const char* name;
    uint64_t LoopCounts::*at;
};

constexpr LoopColumn loop_columns[] = {
    {"matrix", &LoopCounts::matrix}, {"fma", &LoopCounts::fma},
    {"dot", &LoopCounts::dot},       {"transc", &LoopCounts::transcendental},
    {"vector", &LoopCounts::vector}, {"paired", &LoopCounts::paired},
    {"scalar", &LoopCounts::scalar}, {"global", &LoopCounts::global_loads},
    {"waits", &LoopCounts::waits},   {"barriers", &LoopCounts::barriers}};
constexpr int column_width = 10, unit_width = 16;
// Separates a pipeline's name, which has single blanks only, from its key and numbers.
constexpr std::string_view gap = "  ";
constexpr int key_digits = 16;

std::string slower(const Usage& kept, const Usage& now) {
    constexpr double most_growth = 1.05;
    if (kept.loop.multiplications() != 0 && now.loop.multiplications() == 0)
        return "its loop is not found any more";
    if (kept.loop.transcendental != 0 && now.loop.transcendental == 0)
        return "the loop that is found has no exponents any more";
    if (static_cast<double>(now.clocks) <= most_growth * static_cast<double>(kept.clocks)) return "";
    return fmt::format("a pass of its loop takes {} clocks ({}), kept {} ({})", now.clocks, now.unit,
                       kept.clocks, kept.unit);
}

std::string worse(const Usage& kept, const Usage& now, Form form) {
    if (now.result != 0) return kept.result == 0 ? fmt::format("fails with VkResult {}", now.result) : "";
    if (kept.result != 0) return "";
    if (form == Form::loops) return slower(kept, now);
    if (now.spills > kept.spills) return fmt::format("spills {}, kept {}", now.spills, kept.spills);
    if (now.stack_bytes != 0 && kept.stack_bytes == 0)
        return fmt::format("keeps {} bytes on a stack, kept none", now.stack_bytes);
    if (now.occupancy < kept.occupancy)
        return fmt::format("occupancy {}, kept {}", now.occupancy, kept.occupancy);
    return "";
}

// Returns LDS accesses as "16:256,64:76": before each colon are the bits of an invocation, behind it is how many there
// are. "-" stands for none.
std::string text_of(const std::map<uint32_t, uint64_t>& accesses) {
    std::string text;
    for (const auto& [bits, times] : accesses)
        text += fmt::format("{}{}:{}", text.empty() ? "" : ",", bits, times);
    return text.empty() ? "-" : text;
}

std::map<uint32_t, uint64_t> parse_accesses(const std::string& text, const std::string& line) {
    std::map<uint32_t, uint64_t> accesses;
    std::istringstream all(text == "-" ? "" : text);
    for (std::string one; std::getline(all, one, ',');) {
        std::istringstream numbers(one);
        uint32_t bits = 0;
        uint64_t times = 0;
        char colon = 0;
        if (!(numbers >> bits >> colon >> times) || colon != ':')
            throw std::runtime_error(fmt::format("'{}' is no LDS access: {}", one, line));
        accesses[bits] = times;
    }
    return accesses;
}

template <class Columns, class Numbers>
void read_numbers(std::istringstream& fields, const Columns& all, Numbers& numbers, const std::string& line) {
    for (const auto& column : all)
        if (!(fields >> numbers.*column.at))
            throw std::runtime_error(fmt::format("no number for {}: {}", column.name, line));
}

void read_loop(std::istringstream& fields, Usage& usage, const std::string& line) {
    read_numbers(fields, loop_columns, usage.loop, line);
    std::string loads, stores;
    if (!(fields >> loads >> stores >> usage.clocks >> usage.unit))
        throw std::runtime_error("no LDS accesses, clocks and unit: " + line);
    usage.loop.lds_loads = parse_accesses(loads, line);
    usage.loop.lds_stores = parse_accesses(stores, line);
}

std::string loop_text(const Usage& usage) {
    std::string text;
    for (const LoopColumn& column : loop_columns)
        text += fmt::format("{:>{}}", usage.loop.*column.at, column_width);
    return text + fmt::format("  {:>24}{:>20}{:>{}}{:>{}}", text_of(usage.loop.lds_loads),
                              text_of(usage.loop.lds_stores), usage.clocks, column_width, usage.unit,
                              unit_width);
}

std::string head_of_columns(Form form) {
    std::string text;
    if (form == Form::usage) {
        for (const Column& column : columns) text += fmt::format("{:>{}}", column.name, column_width);
        return text;
    }
    for (const LoopColumn& column : loop_columns) text += fmt::format("{:>{}}", column.name, column_width);
    return text + fmt::format("  {:>24}{:>20}{:>{}}{:>{}}", "lds-loads", "lds-stores", "clocks", column_width,
                              "unit", unit_width);
}

std::pair<std::string, Row> parse_line(const std::string& line, Form form) {
    const size_t end = line.find(gap);
    if (end == line.npos) throw std::runtime_error("no pipeline and its numbers: " + line);
    Row row;
    std::istringstream fields(line.substr(end));
    std::string key;
    fields >> key;
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), row.key, 16);
    if (key.size() != key_digits || error != std::errc() || stop != key.data() + key.size())
        throw std::runtime_error("no key: " + line);
    if (line.find(" failed ") != line.npos) {
        std::string word;
        if (!(fields >> word >> row.usage.result)) throw std::runtime_error("no VkResult: " + line);
        return {line.substr(0, end), row};
    }
    if (form == Form::loops)
        read_loop(fields, row.usage, line);
    else
        read_numbers(fields, columns, row.usage, line);
    return {line.substr(0, end), row};
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

Usage loop_usage_of(const std::map<std::string, std::string>& code, std::string_view device_name,
                    const std::optional<LoopWork>& work) {
    constexpr std::pair<const char*, Assembly> languages[] = {{"Assembly", Assembly::aco},
                                                              {"IR3 Assembly", Assembly::ir3},
                                                              {"NAK assembly", Assembly::nak},
                                                              {honeykrisp_code, Assembly::agx}};
    for (const auto& [name, language] : languages) {
        const auto text = code.find(name);
        if (text == code.end()) continue;
        if (parse_assembly(language, text->second).empty()) break;
        Usage usage;
        usage.loop = steady_loop(language, text->second, work);
        if (usage.loop.multiplications() == 0) return usage;
        const UnitRates* const rates = rates_of(device_name);
        const LoopBound bound = rates != nullptr ? bound_of(usage.loop, *rates) : LoopBound{};
        usage.clocks = rates != nullptr ? static_cast<uint64_t>(bound.most()) : usage.loop.instructions();
        usage.unit = rates != nullptr ? bound.unit() : "instructions";
        return usage;
    }
    throw std::runtime_error("the driver gives no assembly that tests/gate knows");
}

std::string to_text(const Table& table) {
    size_t width = 8;
    for (const auto& [name, row] : table.pipelines) width = std::max(width, name.size());
    std::string text = fmt::format("# {}\n# {}\n{:{}}{}{:>{}}", table.driver, table.shader_compiler,
                                   "# pipeline", width, gap, "key", key_digits);
    text += head_of_columns(table.form);
    for (const auto& [name, row] : table.pipelines) {
        text += fmt::format("\n{:{}}{}{:0{}x}", name, width, gap, row.key, key_digits);
        if (row.usage.result != 0)
            text += fmt::format("{}failed {}", gap, row.usage.result);
        else if (table.form == Form::loops)
            text += loop_text(row.usage);
        else
            for (const Column& column : columns)
                text += fmt::format("{:>{}}", row.usage.*column.at, column_width);
    }
    return text + "\n";
}

Table parse_table(std::string_view text, Form form) {
    std::istringstream lines{std::string(text)};
    Table table;
    table.form = form;
    table.driver = head_line(lines, "driver");
    table.shader_compiler = head_line(lines, "shader compiler");
    if (!head_line(lines, "columns").starts_with("pipeline "))
        throw std::runtime_error("the head of the table names no columns");
    for (std::string line; std::getline(lines, line);) {
        if (line.empty() || line.starts_with('#')) continue;
        if (!table.pipelines.insert(parse_line(line, form)).second)
            throw std::runtime_error("twice: " + line);
    }
    return table;
}

TableBuilder::TableBuilder(std::string driver, std::string shader_compiler, Form form)
    : table_{std::move(driver), std::move(shader_compiler), {}, form} {}

void TableBuilder::keep(const Table& kept, Share again) {
    for (const auto& [name, row] : kept.pipelines)
        if (!again.has(row.key)) kept_.emplace(row.key, row.usage);
}

void TableBuilder::add(const std::string& name, uint64_t key, const std::function<Usage()>& build) {
    std::string free = name;
    for (int i = 2; table_.pipelines.contains(free); i++) {
        if (table_.pipelines.at(free).key == key) return;
        free = fmt::format("{} ({})", name, i);
    }
    const auto kept = kept_.find(key);
    if (kept == kept_.end() && !built_.contains(key)) built_.emplace(key, build());
    table_.pipelines[free] = {key, kept != kept_.end() ? kept->second : built_.at(key)};
}

size_t TableBuilder::rows_kept() const {
    return static_cast<size_t>(std::count_if(table_.pipelines.begin(), table_.pipelines.end(),
                                             [&](const auto& p) { return kept_.contains(p.second.key); }));
}

std::string other_tools(const Table& kept, const Table& now) {
    if (kept.driver == now.driver && kept.shader_compiler == now.shader_compiler) return "";
    return fmt::format("the table is of {} and {}, these are {} and {}", kept.driver, kept.shader_compiler,
                       now.driver, now.shader_compiler);
}

std::vector<std::string> regressions(const Table& kept, const Table& now) {
    std::vector<std::string> all;
    for (const auto& [name, row] : now.pipelines) {
        const auto before = kept.pipelines.find(name);
        if (before == kept.pipelines.end())
            all.push_back(name + ": is not in the kept table");
        else if (const std::string why = worse(before->second.usage, row.usage, now.form); !why.empty())
            all.push_back(name + ": " + why);
    }
    for (const auto& [name, row] : kept.pipelines)
        if (!now.pipelines.contains(name)) all.push_back(name + ": is in the kept table only");
    return all;
}

size_t rows_of_other_keys(const Table& kept, const Table& now) {
    return static_cast<size_t>(
        std::count_if(now.pipelines.begin(), now.pipelines.end(), [&](const auto& pipeline) {
            const auto before = kept.pipelines.find(pipeline.first);
            return before == kept.pipelines.end() || before->second.key != pipeline.second.key;
        }));
}

}  // namespace vkattn::test
